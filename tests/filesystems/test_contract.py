"""The store keeps its properties between clients, on every filesystem."""

from __future__ import annotations

import json
from contextlib import ExitStack
from itertools import chain
from typing import Any

import pytest

from tests.filesystems.clients import program, started
from tests.filesystems.contract import RACES, TURNS
from tests.filesystems.shared import Shared, on, shared, started_filesystems

pytestmark = pytest.mark.slow

__all__ = ["shared", "started_filesystems"]

TIMEOUT = 180.0
PROCESSES = 4

_RESULTS: dict[str, list[dict[str, Any]]] = {}


@pytest.fixture
def results(shared: Shared) -> list[dict[str, Any]]:
    """The results of all processes on that filesystem. They run once for all tests."""
    name = shared.source.name
    if name not in _RESULTS:
        places = len(shared.mounts.clients)
        commands = [
            (place % places, program("contract", folder_of(shared, place % places), place, PROCESSES))
            for place in range(PROCESSES)
        ]
        _RESULTS[name] = run(shared, commands)
    return _RESULTS[name]


def folder_of(shared: Shared, client: int) -> str:
    return str(shared.mounts.clients[client].directory / shared.folder)


def run(shared: Shared, commands: list[tuple[int, list[str]]]) -> list[Any]:
    """Return the results of programs that run at the same time, each on the client with that number."""
    with ExitStack() as stack:
        running = [stack.enter_context(started(shared.mounts.clients[at], argv)) for at, argv in commands]
        for process in running:
            ended = process.wait(TIMEOUT)
            assert ended == 0, "\n".join(f"--- {at}\n{other.output()}" for at, other in enumerate(running))
        return [json.loads(process.output().splitlines()[-1]) for process in running]


def test_a_commit_is_seen_by_all_clients_in_time(results: list[dict[str, Any]]) -> None:
    made = sorted(chain.from_iterable(result["turns"] for result in results))
    assert made == list(range(1, TURNS + 1)), "each version was made by the process in turn"
    for place, result in enumerate(results):
        assert all((number - 1) % PROCESSES == place for number in result["turns"])


def test_one_of_all_commits_after_the_same_version_wins(results: list[dict[str, Any]]) -> None:
    won = sorted(chain.from_iterable(result["race"]["won"] for result in results))
    assert won == list(range(1, RACES + 1))


def test_all_clients_see_the_same_winners(results: list[dict[str, Any]]) -> None:
    winners = {number: place for place, result in enumerate(results) for number in result["race"]["won"]}
    truth = [f"{winners[number]} made {number}" for number in range(1, RACES + 1)]
    assert [result["race"]["seen"] for result in results] == [truth] * PROCESSES


def test_all_clients_get_a_value_that_was_set(results: list[dict[str, Any]]) -> None:
    printed = [f"hello from {place}" for place in range(PROCESSES)]
    assert [result["exchange"]["got"] for result in results] == [printed] * PROCESSES


def test_one_of_all_writers_of_an_unset_key_wins(results: list[dict[str, Any]]) -> None:
    exchanges = [result["exchange"] for result in results]
    assert len({exchange["agreed"] for exchange in exchanges}) == 1
    assert all(exchange["chosen"] == exchange["agreed"] for exchange in exchanges)


def test_no_client_gets_the_value_of_a_deleted_key(results: list[dict[str, Any]]) -> None:
    assert [result["exchange"]["left"] for result in results] == [None] * PROCESSES
    assert all("leader" not in result["exchange"]["keys"] for result in results)
    assert all(len(result["exchange"]["keys"]) == 5 * PROCESSES for result in results)


def test_a_published_document_is_always_complete(results: list[dict[str, Any]]) -> None:
    writer, *readers = (result["documents"] for result in results)
    assert writer["number"] > 5
    assert all(reader["torn"] == 0 for reader in readers), results
    assert any(reader["newest"] > 0 for reader in readers), "something was read"


def test_a_new_name_is_listed_before_the_directory_changes_again(shared: Shared) -> None:
    count = 20 if shared.source.late_listings else 100
    commands = [(place, program("visibility", folder_of(shared, place), place, count)) for place in range(2)]
    published, late = run(shared, commands)
    assert (published, late) == (None, [])


# Leases

SLACK = 10.0
"""Seconds for which a busy machine may delay a process."""


@pytest.mark.parametrize("shared", on(lambda source: source.group.slow or source.staleness > 0), indirect=True)
def test_observers_see_the_life_and_the_end_of_a_lease_in_time(shared: Shared) -> None:
    stale = shared.source.staleness
    expiry = 1.5 + 1.2 * stale
    life = 1.5 * expiry
    commands = [(0, "own", life), (1, "watch", expiry), (0, "watch", expiry)]
    argvs = [
        (client, program("leases", role, folder_of(shared, client), who, seconds))
        for who, (client, role, seconds) in enumerate(commands)
    ]
    _, *watches = run(shared, argvs)
    for found in watches:
        assert found["proved"], found
        assert life <= found["lived"] + 1 < life + expiry + stale + SLACK, found
