"""A run with an agent on each client survives the death of a worker and of an agent, on every filesystem."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.filesystems.clients import CHECKOUT, Process, started
from tests.filesystems.mount_sets import SOURCES, Source
from tests.filesystems.shared import Shared, on, shared, started_filesystems

pytestmark = pytest.mark.slow

__all__ = ["shared", "started_filesystems"]

TIMEOUT = 120.0
WORKER = str(CHECKOUT / "tests" / "filesystems" / "worker.py")


QUICK = ("ext4", "FUSE, local locks", "FUSE, lost replies", "NFSv4.2")
"""Filesystems that each test run uses. The others take longer or show little more."""


def timings(source: Source) -> str:
    """Return timings that fit the staleness of the filesystem, like those of `hpcelastic doctor`."""
    lease = 4 + 2 * source.staleness
    return f"lease={lease},margin={1 + source.staleness},last_call={3 + source.staleness},poll=0.2,join_timeout=120"


def agent(shared: Shared, place: int) -> list[str]:
    flags = {
        "--nnodes": "1:2",
        "--max-restarts": "3",
        "--rdzv-id": "run",
        "--rdzv-endpoint": str(shared.mounts.clients[place].directory / shared.folder),
        "--rdzv-conf": timings(shared.source),
        "--node-name": f"n{place}",
        "--tee": "3",
    }
    return [sys.executable, "-m", "hpcelastic", "agent", *(part for flag in flags.items() for part in flag), WORKER]


def eventually(what: str, good: Callable[[], object], agents: list[Process]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not good():
        printed = "\n--- agent\n".join(process.output() for process in agents)
        assert time.monotonic() < deadline, f"waited {TIMEOUT:g} s for {what}:\n{printed}"
        time.sleep(0.1)


def rounds(process: Process, world: int, whole: bool) -> list[int]:
    """Return the rounds of that size in the output of workers beside that agent, before or after a worker died."""
    pattern = rf"rank \d+ of {world} in round (\d+), whole: {whole}"
    return [int(number) for number in re.findall(pattern, process.output())]


# On a filesystem with random errors an agent may end by one of them: by rule, a failed sync is not repeated.
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "shared",
    on(lambda source: source.name not in QUICK, [source for source in SOURCES if not source.fails]),
    indirect=True,
)
def test_a_run_survives_the_death_of_a_worker_and_an_agent(shared: Shared) -> None:
    with ExitStack() as stack:
        agents = [
            stack.enter_context(started(client, agent(shared, place)))
            for place, client in enumerate(shared.mounts.clients)
        ]
        first, second = agents
        eventually("a round of both after a worker's death", lambda: rounds(first, 2, True), agents)
        second.kill()
        eventually("a round of the one that is left", lambda: rounds(first, 1, True), agents)
        assert min(rounds(first, 1, True)) > max(rounds(first, 2, True)) > max(rounds(first, 2, False))
        client = shared.mounts.clients[0]
        finish = client.directory / shared.folder / "run" / "finish"
        touch = ["bash", "-c", 'until touch "$0"; do sleep 0.1; done', str(finish)]
        assert stack.enter_context(started(client, touch)).wait(TIMEOUT) == 0
        assert first.wait(TIMEOUT) == 0, first.output()
        assert "finished" in first.output()
