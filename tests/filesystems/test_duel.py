"""A worker of an older round that is suspended before any of its steps never publishes over a newer round.

`tests.training.test_fence` shows that a fault of the fence would be found.
"""

import json
from contextlib import ExitStack
from typing import Any

import pytest

from tests.filesystems.clients import program, started
from tests.filesystems.shared import Shared, shared, started_filesystems

pytestmark = pytest.mark.slow

__all__ = ["shared", "started_filesystems"]

TIMEOUT = 240.0
"""Time limit for all bouts in seconds. If a client caches absent names for long, a claim takes as long."""


@pytest.mark.parametrize("clients", [(0, 1), (0, 0)], ids=["two clients", "one client"])
def test_a_suspended_worker_never_publishes_over_a_newer_round(shared: Shared, clients: tuple[int, int]) -> None:
    sleeper, newer = duel(shared, clients)
    assert len(sleeper) == len(newer) > 8
    for mine, theirs in zip(sleeper, newer, strict=True):
        assert theirs == {"refused": "", "latest": "3"}, f"it was suspended before {mine}"
    assert sum(bool(bout["refused"]) for bout in sleeper) > 5, sleeper


def duel(shared: Shared, clients: tuple[int, int]) -> list[list[dict[str, Any]]]:
    """Return the bouts of the sleeper and of the newer worker, each on its client."""
    with ExitStack() as running:
        players = []
        for role, number in zip(("sleeper", "newer"), clients, strict=True):
            client = shared.mounts.clients[number]
            argv = program("duel", role, client.directory / shared.folder)
            players.append(running.enter_context(started(client, argv)))
        for player in players:
            assert player.wait(TIMEOUT) == 0, [other.output() for other in players]
        return [json.loads(player.output().splitlines()[-1]) for player in players]
