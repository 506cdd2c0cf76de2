"""A versioned register in a directory: one JSON value, changed by compare-and-set.

Version N+1 exists once a file of that name has been created exclusively, and N is the fencing token: a writer that has
read version N can create N+1 and nothing else, so of all that decide on the same version one wins, and a writer that
slept through a change can never win. The lock keeps contention cheap; nothing rests on it.
"""

import contextlib
import json
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcelastic.errors import StoreError
from hpcelastic.store import files, history
from hpcelastic.store.errnos import pauses
from hpcelastic.store.locks import BoundedLock, LockKind

PATIENCE = 2.0
"""Seconds for which a reader looks again for what the directory should show, and does not."""

_BACKOFF = (0.01, 0.5)
"""Seconds that the loser of a race waits at most, after the first and after many."""

_WIDTH = 10
"""Digits of a version's name: as names are ordered, so are numbers."""

_NAME = re.compile(r"v[0-9]+\.json")

FIRST = f"v{1:0{_WIDTH}d}.json"
"""The file of version 1."""


@dataclass(frozen=True)
class Version:
    """One version of a register; number 0, with value None, before anything was written."""

    number: int
    value: Any


class Register:
    """The register kept in ``directory``, which must exist before the first commit.

    With ``keep``, only so many versions stay, and those that are seconds old by ``clock`` (see `history`); else all do.
    ``patience`` is for how long, in seconds, a version may be listed and yet not be there for this client.
    """

    def __init__(
        self,
        directory: Path,
        writer: str,
        lock: LockKind = LockKind.NATIVE,
        keep: int | None = None,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory
        self._writer = writer
        self._lock = BoundedLock(directory, lock)
        self._patience = patience
        self._clock = clock
        self._tail = None if keep is None else history.Tail(directory, keep, clock)
        self._newest = Version(0, None)

    @property
    def where(self) -> str:
        """Where it is kept, for people."""
        return str(self.directory)

    def read(self) -> Version:
        """The newest version. Never older than one this object has returned or committed before."""
        for pause in pauses(self._patience):
            last = self._last()
            if last > self._newest.number:
                found = self._find(last)
                if found is not None:
                    self._newest = found
                    return found
            elif last or self._newest.number == 0:
                return self._newest
            elif not files.exists(self.directory):
                break
            time.sleep(pause)  # it was removed under us, or this client doesn't see yet what is there
        raise self._lost(last)

    def version(self, number: int) -> Version:
        """One version from the history; StoreError if it is not there or not whole."""
        found = self._find(number)
        if found is None:
            raise StoreError(f"{self._path(number)}: {self._damage(number)}")
        return found

    def numbers(self) -> list[int]:
        """The numbers of all versions that are kept, ascending."""
        found = (name[1:-5] for name in files.names(self.directory) if name.startswith("v") and name.endswith(".json"))
        return sorted(int(digits) for digits in found if digits.isdigit())

    def commit(self, after: int, value: Any) -> bool:
        """Make ``value`` version ``after`` + 1; False if that number is taken.

        A StoreError may leave it open whether the version exists; who reads it anew knows.
        """
        document = {"version": after + 1, "writer": self._writer, "nonce": secrets.token_hex(8), "value": value}
        won = self._publish(after, document) if self._tail is None else self._publish_next(after, document, self._tail)
        if won and after >= self._newest.number:
            self._newest = Version(after + 1, json.loads(files.to_json(value)))
        return won

    def update(self, change: Callable[[Any], Any]) -> Version:
        """Set the value to ``change(value)`` whoever else writes; ``change`` may be called more than once."""
        pace = _BACKOFF[0]
        while True:
            with self.lock():
                old = self.read()
                new = change(old.value)
                if self.commit(old.number, new):
                    return Version(old.number + 1, new)
            time.sleep(random.uniform(0, pace))  # without a lock that excludes, whoever was slower would be so again
            pace = min(pace * 2, _BACKOFF[1])

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock if it can be had in time; go on without it otherwise."""
        with self._lock.tried():
            yield

    def _publish(self, after: int, document: dict[str, Any]) -> bool:
        return files.publish_new(self._path(after + 1), files.to_json(document))

    def _publish_next(self, after: int, document: dict[str, Any], tail: history.Tail) -> bool:
        """Publish where versions are removed: `history` says why the draft comes before the look."""
        path = self._path(after + 1)
        with files.drafted(path, files.to_json(document)) as draft:
            if not self._next_is_free(after):
                return False
            began = self._clock()
            claim = files.take(draft)
        if claim is files.Claim.SWEPT and self._clock() - began >= history.SETTLE:
            # A server that took so long may have linked the draft, and what it made of it may be gone by now.
            raise StoreError(f"{path}: the shared filesystem did not say whether this was written; look at the value")
        if claim is files.Claim.WON:
            with contextlib.suppress(StoreError):
                tail.cut(after + 1, self.numbers, self._path)
        return claim is files.Claim.WON

    def _next_is_free(self, after: int) -> bool:
        """Whether ``after`` is still the newest."""
        last = self._last()
        if not last:
            self.read()  # raises where there have been versions
        return last <= after

    def _last(self) -> int:
        """The number of the newest version that is listed; 0 if none is."""
        names = files.names(self.directory)
        newest = max(names, default="")  # of a thousand names, so much faster than to parse each
        if not _NAME.fullmatch(newest):
            newest = max(filter(_NAME.fullmatch, names), default="")
        return int(newest[1:-5] or 0)

    def _find(self, number: int) -> Version | None:
        """One version; None if it is not there, StoreError if it is not whole."""
        document = files.read_json(self._path(number))
        if document is None:
            return None
        if not isinstance(document, dict) or document.get("version") != number or "value" not in document:
            raise StoreError(f"{self._path(number)}: {self._damage(number)}")
        return Version(number, document["value"])

    def _damage(self, number: int) -> str:
        return f"not version {number} of a register; the file was damaged, restore or remove it"

    def _lost(self, last: int) -> StoreError:
        if last:
            what = "is listed, and this node can't open it; it may have to forget first that the name was absent, or"
            return StoreError(f"{self._path(last)}: {what} {files.advice(None)}")
        return StoreError(
            f"{self.directory}: its {self._newest.number} versions have gone; check that the shared filesystem is "
            "mounted on this node, and that nobody has removed the run"
        )

    def _path(self, number: int) -> Path:
        return self.directory / f"v{number:0{_WIDTH}d}.json"
