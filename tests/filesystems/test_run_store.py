"""RunStore is exact between processes on different mounts of one directory, on every filesystem."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

import pytest

from tests.filesystems.clients import program
from tests.filesystems.run_store import EACH, RACES
from tests.filesystems.shared import Shared, shared, started_filesystems
from tests.filesystems.test_contract import folder_of, run

pytestmark = pytest.mark.slow

__all__ = ["shared", "started_filesystems"]

PROCESSES = 4
ITEMS = {f"{place}.{number}" for place in range(PROCESSES) for number in range(EACH)}

Found = list[dict[str, Any]]

_RESULTS: dict[str, Found] = {}


@pytest.fixture
def results(shared: Shared) -> Found:
    """The results of all processes on that filesystem. They run once for all tests."""
    name = shared.source.name
    if name not in _RESULTS:
        places = len(shared.mounts.clients)
        commands = [
            (place % places, program("run_store", folder_of(shared, place % places), place, PROCESSES))
            for place in range(PROCESSES)
        ]
        found = run(shared, commands)
        assert shared.source.fails or not failures(found), found
        _RESULTS[name] = found
    return _RESULTS[name]


def failures(results: Found) -> Counter[str]:
    """Return the number of failed operations of each kind."""
    return sum((Counter(result["failed"]) for result in results), Counter[str]())


def check_once(seen: list[str], open_ends: int) -> None:
    """Check that every item was seen, and none twice. As many exceptions are allowed as operations have failed."""
    assert max(Counter(seen).values()) == 1, seen
    assert set(seen) <= ITEMS
    assert len(ITEMS - set(seen)) <= open_ends, (ITEMS - set(seen), open_ends)


def test_no_addition_is_lost_or_executed_twice(results: Found) -> None:
    sums = sorted(chain.from_iterable(result["sums"] for result in results))
    (left,) = {result["left"] for result in results}
    assert len(sums) == len(set(sums)) == PROCESSES * EACH - failures(results)["add"]
    assert len(sums) <= left <= PROCESSES * EACH


def test_one_of_all_writers_of_an_absent_key_wins_and_all_agree(results: Found) -> None:
    (first,) = {tuple(result["first"]) for result in results}
    assert len(first) == RACES and set(first) <= {str(place) for place in range(PROCESSES)}


def test_appended_items_exist_once_in_the_same_order_for_all(results: Found) -> None:
    (log,) = {result["log"] for result in results}
    check_once(log.split(), failures(results)["append"])
    assert in_order(log.split())


def test_no_item_of_a_queue_is_lost_or_taken_twice(results: Found) -> None:
    taken = list(chain.from_iterable(result["taken"] for result in results))
    failed = failures(results)
    check_once(taken, failed["push"] + failed["pop"])
    assert all(in_order(result["taken"]) for result in results), "first in, first out"


def in_order(items: list[str]) -> bool:
    """Return whether each process's items are in the order in which it pushed them."""
    return all([item for item in items if item[0] == who] == sorted(i for i in items if i[0] == who) for who in "0123")


def test_the_check_finds_items_that_were_lost_or_taken_twice() -> None:
    items = sorted(ITEMS)
    check_once(items, 0)
    for seen in (items[1:], [*items, items[0]], [*items[1:], "9.9"]):
        with pytest.raises(AssertionError):
            check_once(seen, 0)
    assert in_order(items) and not in_order(items[::-1])
