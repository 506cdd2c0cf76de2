"""A versioned register in a directory: one JSON value, changed by compare-and-set.

Version N+1 exists once a file of that name was created exclusively. N is the fencing token: a writer that has read
version N can create only N+1. So of all writers that decide on the same version exactly one wins, and a writer that
slept during a change can never win. The lock reduces contention; correctness does not depend on it.
"""

import contextlib
import json
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcelastic.errors import StoreError, VisibilityError
from hpcelastic.storage import files, history
from hpcelastic.storage.errnos import poll_delays
from hpcelastic.storage.locks import LOCK_TIMEOUT, BoundedLock

VISIBILITY_TIMEOUT = 2.0
"""Seconds for which a reader polls for a version that the directory lists but does not show yet."""

_BACKOFF_DELAYS = (0.01, 0.5)
"""The maximum wait of a writer that lost a race, in seconds: after the first race, and after many."""

_NUMBER_DIGITS = 10
"""Digits of the number in a version's name, so that names sort like numbers."""

_VERSION_NAME = re.compile(r"v[0-9]+\.json")

FIRST = f"v{1:0{_NUMBER_DIGITS}d}.json"
"""The file of version 1."""


@dataclass(frozen=True)
class Version:
    """One version of a register. Number 0 with value None means that nothing is written yet."""

    number: int
    value: Any


class Register:
    """A register in ``directory``, which must exist before the first commit.

    With ``keep``, only the last ``keep`` versions stay, and those that are seconds old by ``clock`` (see `history`).
    With ``keep_first``, version 1 stays too. Without ``keep``, all versions stay. ``visibility_timeout`` is the time in
    seconds for which a listed version may be invisible to this client. `lock` waits for ``lock_timeout`` seconds.
    """

    def __init__(
        self,
        directory: Path,
        writer: str,
        keep: int | None = None,
        visibility_timeout: float = VISIBILITY_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
        lock_timeout: float = LOCK_TIMEOUT,
        *,
        keep_first: bool = False,
    ) -> None:
        self.directory = directory
        self._writer = writer
        self._lock = BoundedLock(directory, lock_timeout)
        self._visibility_timeout = visibility_timeout
        self._clock = clock
        self._trimmer = None if keep is None else history.HistoryTrimmer(directory, keep, clock, keep_first=keep_first)
        self._newest = Version(0, None)
        self._written = b""
        """The file of the newest version if this object has written it and `read` has not returned it; else empty."""

    @property
    def where(self) -> str:
        """The directory, for messages."""
        return str(self.directory)

    def read(self) -> Version:
        """Return the newest version. It is never older than a version that this object has returned or committed."""
        for pause in poll_delays(self._visibility_timeout):
            last = self._last_number()
            if last > self._newest.number:
                found = self._read_version(last)
                if found is not None:
                    self._newest, self._written = found, b""
                    return found
            elif last or self._newest.number == 0:
                if self._written:  # its value is what other readers get
                    self._newest, self._written = replace(self._newest, value=json.loads(self._written)["value"]), b""
                return self._newest
            elif not files.exists(self.directory):
                break
            time.sleep(pause)  # the version was removed meanwhile, or this client does not see it yet
        raise self._missing_error(last)

    def assume(self, number: int) -> None:
        """Take version ``number``, which the caller knows from elsewhere, as read; `read` returns no value of it."""
        if number >= self._newest.number:
            self._newest, self._written = Version(number, None), b""

    def open(self, number: int) -> Version | None:
        """Return version ``number`` without a listing, although a newer one may exist; None if it cannot be opened."""
        found = self._read_version(number)
        if found is not None and number > self._newest.number:
            self._newest, self._written = found, b""
        return found

    def version(self, number: int) -> Version:
        """Return one version from the history; StoreError if it is missing or damaged."""
        found = self._read_version(number)
        if found is None:
            raise StoreError(f"{self._path(number)}: {self._damage_message(number)}")
        return found

    def numbers(self) -> list[int]:
        """Return the numbers of all existing versions, ascending."""
        found = (name[1:-5] for name in files.names(self.directory) if name.startswith("v") and name.endswith(".json"))
        return sorted(int(digits) for digits in found if digits.isdecimal())

    def commit(self, after: int, value: Any) -> bool:
        """Make ``value`` version ``after`` + 1; return False if that number is taken.

        After a StoreError the version may or may not exist; read the register again to find out.
        """
        nonce = secrets.token_hex(8)
        data = files.to_json({"version": after + 1, "writer": self._writer, "nonce": nonce, "value": value})
        trimmer = self._trimmer
        won = self._publish(after, data) if trimmer is None else self._publish_next(after, data, trimmer)
        if won and after >= self._newest.number:
            self._newest, self._written = Version(after + 1, None), data
        return won

    def update(self, change: Callable[[Any], Any]) -> Version:
        """Set the value to ``change(value)``, also with other writers. ``change`` may be called more than once."""
        delay = _BACKOFF_DELAYS[0]
        while True:
            with self.lock():
                old = self.read()
                new = change(old.value)
                if self.commit(old.number, new):
                    return Version(old.number + 1, new)
            time.sleep(
                random.uniform(0, delay)
            )  # random, because without a working lock the slower writer would lose again
            delay = min(delay * 2, _BACKOFF_DELAYS[1])

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock if it is acquired in time; continue without it otherwise."""
        with self._lock.hold():
            yield

    def _publish(self, after: int, data: bytes) -> bool:
        return files.publish_new(self._path(after + 1), data)

    def _publish_next(self, after: int, data: bytes, trimmer: history.HistoryTrimmer) -> bool:
        """Publish if old versions are removed; `history` explains why the draft precedes the listing."""
        path = self._path(after + 1)
        with files.new_draft(path, data) as draft:
            if not self._next_is_free(after):
                return False
            began = self._clock()
            result = files.link_draft(draft)
        if result is files.LinkResult.DRAFT_REMOVED and self._clock() - began >= history.SETTLE_DELAY:
            # A server that took so long may have linked the draft, and that version may be removed by now.
            raise StoreError(
                f"{path}: the shared filesystem did not confirm that this was written; read the value to check it"
            )
        if result is files.LinkResult.CREATED:
            with contextlib.suppress(StoreError):
                trimmer.trim(after + 1, self.numbers, self._path)
        return result is files.LinkResult.CREATED

    def _next_is_free(self, after: int) -> bool:
        """Return True if ``after`` is still the newest version."""
        last = self._last_number()
        if not last:
            self.read()  # raises an error if versions existed before
        return last <= after

    def _last_number(self) -> int:
        """Return the number of the newest listed version; 0 if there is none."""
        names = files.names(self.directory)
        newest = max(names, default="")  # much faster than parsing each of a thousand names
        if not _VERSION_NAME.fullmatch(newest):
            newest = max(filter(_VERSION_NAME.fullmatch, names), default="")
        return int(newest[1:-5] or 0)

    def _read_version(self, number: int) -> Version | None:
        """Return one version; None if it is missing, StoreError if it is damaged."""
        document = files.read_json(self._path(number))
        if document is None:
            return None
        if not isinstance(document, dict) or document.get("version") != number or "value" not in document:
            raise StoreError(f"{self._path(number)}: {self._damage_message(number)}")
        return Version(number, document["value"])

    def _damage_message(self, number: int) -> str:
        return f"not version {number} of a register; the file was damaged, restore or remove it"

    def _missing_error(self, last: int) -> StoreError:
        if last:
            what = "is listed, but this node can't open it; wait until its cache of absent names expires, or"
            return VisibilityError(f"{self._path(last)}: {what} {files.advice(None)}")
        return StoreError(
            f"{self.directory}: its {self._newest.number} versions are gone; check that the shared filesystem is "
            "mounted on this node, and that the run was not removed"
        )

    def _path(self, number: int) -> Path:
        return self.directory / f"v{number:0{_NUMBER_DIGITS}d}.json"
