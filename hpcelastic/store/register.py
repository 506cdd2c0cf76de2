"""A versioned register in a directory: one JSON value, changed by compare-and-set.

Version N+1 exists once a file of that name has been created exclusively, and N is the fencing token: a writer that has
read version N can create N+1 and nothing else, so of all that decide on the same version one wins, and a writer that
slept through a change can never win. The lock keeps contention cheap; nothing rests on it, and it is waited for only a
bounded time, since a client that froze while it held one has been seen to hold it for ever.
"""

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from hpcelastic.errors import StoreError
from hpcelastic.store import files

LOCK_PATIENCE = 1.0
"""Seconds for which the lock is waited for before doing without it."""

_WIDTH = 10


@dataclass(frozen=True)
class Version:
    """One version of a register; number 0, with value None, before anything was written."""

    number: int
    value: Any


class Register:
    """The register kept in ``directory``, which must exist before the first commit."""

    def __init__(self, directory: Path, writer: str) -> None:
        self.directory = directory
        self._writer = writer
        self._newest = Version(0, None)

    def read(self) -> Version:
        """The newest version. Never older than one this object has returned before."""
        numbers = self.numbers()
        if numbers and numbers[-1] > self._newest.number:
            self._newest = self.version(numbers[-1])
        return self._newest

    def version(self, number: int) -> Version:
        """One version from the history; StoreError if it is not there or not whole."""
        path = self._path(number)
        document = files.read_json(path)
        if not isinstance(document, dict) or document.get("version") != number or "value" not in document:
            raise StoreError(f"{path}: not version {number} of a register; the file was damaged, restore or remove it")
        return Version(number, document["value"])

    def numbers(self) -> list[int]:
        """The numbers of all versions that are kept, ascending."""
        found = (name[1:-5] for name in files.names(self.directory) if name.startswith("v") and name.endswith(".json"))
        return sorted(int(digits) for digits in found if digits.isdigit())

    def commit(self, after: int, value: Any) -> bool:
        """Make ``value`` version ``after`` + 1; False if that number is taken. No version is ever removed."""
        document = {"version": after + 1, "writer": self._writer, "nonce": secrets.token_hex(8), "value": value}
        return files.publish_new(self._path(after + 1), files.to_json(document))

    def update(self, change: Callable[[Any], Any]) -> Version:
        """Set the value to ``change(value)`` whoever else writes; ``change`` may be called more than once."""
        while True:
            with self.lock():
                old = self.read()
                new = change(old.value)
                if self.commit(old.number, new):
                    return Version(old.number + 1, new)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock if it can be had in time; go on without it otherwise."""
        lock = filelock.FileLock(self.directory / "lock", timeout=LOCK_PATIENCE, mode=0o600)
        held = contextlib.ExitStack()
        # OSError: no lock service, no locks on this mount; NotImplementedError: what filelock makes of some of those
        with contextlib.suppress(filelock.Timeout, OSError, NotImplementedError):
            held.enter_context(lock.acquire(poll_interval=0.01))
        with held:
            yield

    def _path(self, number: int) -> Path:
        return self.directory / f"v{number:0{_WIDTH}d}.json"
