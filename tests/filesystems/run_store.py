"""Test the properties of RunStore as one of several concurrent processes: ``run_store DIRECTORY PLACE COUNT``.

Each prints the results of its operations. On a filesystem with errors, a failed operation may have taken effect or not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from hpcelastic.errors import StoreError
from hpcelastic.pytorch import RunStore
from tests.filesystems.contract import TIMEOUT, persistently
from tests.filesystems.hammer import meet

T = TypeVar("T")

EACH = 6
RACES = 3


class Crowd:
    """One of ``count`` processes that share a store."""

    def __init__(self, directory: Path, place: int, count: int) -> None:
        self.store: RunStore = persistently(lambda: RunStore(directory, timedelta(seconds=TIMEOUT)))
        self.place = place
        self.count = count
        self.failed: dict[str, int] = {}

    def once(self, what: str, operation: Callable[[], T]) -> list[T]:
        """Return the result of the operation; an empty list if it failed because of the filesystem."""
        try:
            return [operation()]
        except StoreError:
            self.failed[what] = self.failed.get(what, 0) + 1
            return []

    def all_here(self, step: str) -> None:
        """Wait for the keys of the others."""
        persistently(lambda: self.store.set(f"{step}/{self.place}", b"\xff here"))
        persistently(lambda: self.store.wait([f"{step}/{other}" for other in range(self.count)]))

    def add(self) -> list[int]:
        """Return the sums."""
        return [found for _ in range(EACH) for found in self.once("add", lambda: self.store.add("sum", 1))]

    def append(self) -> None:
        for number in range(EACH):
            self.once("append", lambda number=number: self.store.append("log", f"{self.place}.{number} "))

    def race(self) -> list[str]:
        """Return the first writer of each key, as this process sees it."""
        return [
            persistently(lambda race=race: self.store.compare_set(f"first/{race}", "", str(self.place))).decode()
            for race in range(RACES)
        ]

    def queue(self) -> list[str]:
        """Push as many items as the others. Pop items meanwhile, and afterwards until none is left."""
        taken = []
        for number in range(EACH):
            self.once("push", lambda number=number: self.store.queue_push("queue", f"{self.place}.{number}"))
            taken += self.once("pop", lambda: self.store.queue_pop("queue")) if number % 2 else []
        self.all_here("pushed")
        while persistently(lambda: self.store.queue_len("queue")):
            try:
                taken += self.once("pop", lambda: self.store.queue_pop("queue", block=False))
            except dist.QueueEmptyError:
                break
        return [item.decode() for item in taken]


def main(directory: str, place: str, count: str) -> None:
    crowd = Crowd(Path(directory) / "facts", int(place), int(count))
    meet(Path(directory), place, crowd.count)
    sums, first = crowd.add(), crowd.race()
    crowd.append()
    taken = crowd.queue()
    crowd.all_here("done")
    log, left = (persistently(look) for look in (lambda: crowd.store.get("log"), lambda: crowd.store.get("sum")))
    found = {"sums": sums, "first": first, "taken": taken, "log": log.decode(), "left": int(left)}
    print(json.dumps({**found, "failed": crowd.failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
