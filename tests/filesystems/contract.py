"""Test the properties of the store as one of several concurrent processes: ``contract DIRECTORY PLACE COUNT``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hpcelastic.errors import StoreError
from hpcelastic.storage import files
from hpcelastic.storage.keyvalue import KeyValueStore
from hpcelastic.storage.register import Register
from tests.filesystems.hammer import meet

T = TypeVar("T")

TURNS = 8
RACES = 6
PUBLISHING = 1.0
"""Seconds for which documents are published and read."""

TIMEOUT = 60.0


def persistently(operation: Callable[[], T]) -> T:
    """Repeat an operation on a filesystem with random errors, for longer than it caches that a name is absent."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        try:
            return operation()
        except StoreError:
            time.sleep(0.02)
    return operation()


def commit(register: Register, after: int, value: str) -> bool:
    """Commit. If the outcome is unknown, read it."""
    try:
        return register.commit(after, value)
    except StoreError:
        return persistently(lambda: after + 1 in register.numbers()) and is_at(register, after + 1, value)


def is_at(register: Register, number: int, value: str) -> bool:
    return bool(persistently(lambda: register.version(number)).value == value)


def take_turns(directory: Path, place: int, count: int) -> list[int]:
    """Commit whenever the newest version shows that it is our turn. Return the versions that we made."""
    register, made, deadline = Register(directory, str(place)), [], time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        number = persistently(register.read).number
        if number >= TURNS:
            break
        if number % count == place and commit(register, number, str(place)):
            made.append(number + 1)
        time.sleep(0.005)
    return made


def race(directory: Path, place: int) -> dict[str, list[Any]]:
    """Try to make every version. Return our versions, and the writer of each version as we see it."""
    register = Register(directory, str(place))
    won = [number + 1 for number in range(RACES) if commit(register, number, f"{place} made {number + 1}")]
    seen = [persistently(lambda number=number: register.version(number)).value for number in range(1, RACES + 1)]
    return {"won": won, "seen": seen}


def exchange(directory: Path, place: int, count: int) -> dict[str, Any]:
    """Use every operation of the key-value store between processes that wait for each other's keys."""
    store = KeyValueStore(directory, str(place))
    everyone = range(count)

    def all_here(step: str) -> None:
        persistently(lambda: store.set(f"{step}/{place}", "here"))
        persistently(lambda: store.wait([f"{step}/{other}" for other in everyone], TIMEOUT))

    persistently(lambda: store.set(f"from/{place}", f"hello from {place}"))
    all_here("set")
    got = [persistently(lambda other=other: store.get(f"from/{other}")) for other in everyone]
    chosen = persistently(lambda: store.compare_set("leader", None, str(place)))
    all_here("chosen")
    agreed = persistently(lambda: store.get("leader"))
    all_here("agreed")
    if place == 0:
        persistently(lambda: store.delete("leader"))
    all_here("deleted")
    left = persistently(lambda: store.get("leader"))
    return {"got": got, "chosen": chosen, "agreed": agreed, "left": left, "keys": persistently(store.keys)}


def publish_and_read(directory: Path, place: int) -> dict[str, int]:
    """The first process publishes documents under one name. The others read until they have seen one of them."""
    path, began, number, newest, torn = directory / "document.json", time.monotonic(), 0, 0, 0
    waits = PUBLISHING if place == 0 else TIMEOUT
    while (passed := time.monotonic() - began) < PUBLISHING or (newest == 0 and passed < waits):
        number += 1
        try:
            if place == 0:
                publish(path, number)
            elif (document := files.read_json(path)) is not None:
                newest = document["number"]
                torn += document["pad"] != pad(newest)
        except StoreError as error:
            torn += "not JSON" in str(error)
        time.sleep(0.002)
    return {"number": number, "newest": newest, "torn": torn}


def publish(path: Path, number: int) -> None:
    files.publish(path, files.to_json({"number": number, "pad": pad(number)}), durable=False)


def pad(number: int) -> str:
    """Return padding, so that the lengths of documents differ much."""
    return "x" * (number * 997 % 20_000)


def main(directory: str, place: str, count: str) -> None:
    root, own, all_of_us = Path(directory), int(place), int(count)
    for name in ("turns", "race", "store", "documents"):
        persistently(lambda name=name: files.make_directory(root / name))
    if own == 0:
        persistently(
            lambda: publish(root / "documents" / "document.json", 0)
        )  # otherwise clients may cache for long that it is absent
    meet(root, place, all_of_us)
    found = {
        "turns": take_turns(root / "turns", own, all_of_us),
        "race": race(root / "race", own),
        "exchange": exchange(root / "store", own, all_of_us),
        "documents": publish_and_read(root / "documents", own),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
