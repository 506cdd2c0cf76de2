"""Coordination of members on several nodes through the directory that they examine, and through nothing else.

Member 0 creates a coordination directory. The other members find it by listing, and each member finds the messages of
the others by listing. Every wait has a time limit, and a waiting member reports for which members it waits.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hpcelastic.doctor.bounded_calls import retry_transient
from hpcelastic.errors import StoreError
from hpcelastic.storage import files
from hpcelastic.storage.errnos import retry

PREFIX = ".doctor-"

_PROGRESS_INTERVAL = 5.0
"""Seconds between two lines that report which members are missing."""

_TOUCH_INTERVAL = 2.0
"""Seconds without an expected name in a listing after which the listing may be permanently stale."""

_LONGEST_POLL = 2.0
"""The longest time between two polls of a member, in seconds. There are about ten waits one after the other."""

_FAILED = "failed"


@dataclass(frozen=True)
class Members:
    """The members of an examination, and the rank of this one."""

    count: int = 1
    rank: int = 0
    id: str = "alone"
    """Identifies the examination: the same for all of its members, different for every other examination."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"the number of members is {self.count}; it must be 1 or more")
        if not 0 <= self.rank < self.count:
            raise ValueError(f"rank {self.rank} is not in 0..{self.count - 1}")

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.count) if rank != self.rank]


class MissingMembersError(StoreError):
    """Members did not publish an expected step in time."""


class Coordination:
    """Messages between the members. ``timeout`` is the limit of each wait in seconds."""

    def __init__(self, directory: Path, members: Members, timeout: float, report: Callable[[str], None]) -> None:
        self.root = directory / f"{PREFIX}{members.id}"
        self.members = members
        self.created = False
        """True once this member has created the directory. Then it must remove it."""
        self.unlisted = 0
        """Number of existing names that were listed only after their directory had been touched."""
        self._steps = self.root / "steps"
        self._timeout = timeout
        self._report = report

    def open(self) -> None:
        """Create the coordination directory, or wait until member 0 has created it."""
        if self.members.rank == 0:
            self._create_root()
        else:
            self._wait_for_root()

    def publish(self, step: str, value: Any = None) -> None:
        """Publish that this member has reached ``step``, with a JSON value."""
        path, data = self._steps / f"{step}.{self.members.rank}", files.to_json(value)
        retry_transient(lambda: files.publish(path, data, durable=False))

    def receive(self, step: str, ranks: Iterable[int], *, waiting: int | None = None) -> dict[int, Any]:
        """Return the value that each of ``ranks`` has published at ``step``.

        ``waiting`` is the number of members that receive at the same time; None for all. Raises MissingMembersError,
        with the names of the missing members, at the time-out. Raises StoreError if another member has given up.
        """
        received: dict[int, Any] = {}

        def read(name: str, rank: int) -> bool:
            content = retry_transient(partial(files.read, self._steps / name))
            if content is not None:
                received[rank] = json.loads(content)
            return content is not None

        self._await(step, ranks, read, waiting)
        return received

    def meet(self, step: str) -> None:
        """Publish that this member has reached ``step``, and wait for all others, as `receive` does.

        No file is read: each of thousands of members would read the files of all.
        """
        self.publish(step)
        self._await(step, range(self.members.count), lambda name, rank: True)

    def _await(
        self, step: str, ranks: Iterable[int], accept: Callable[[str, int], bool], waiting: int | None = None
    ) -> None:
        """Wait until the file of each of ``ranks`` is listed and ``accept`` has returned True for it."""
        missing = {f"{step}.{rank}": rank for rank in ranks}
        wait = _Wait(self._timeout, _poll_interval(waiting or self.members.count))
        while missing:
            names = self._list(self._steps, missing.keys(), wait)
            self._raise_failure(names)
            missing = {name: rank for name, rank in missing.items() if name not in names or not accept(name, rank)}
            left = sorted(missing.values())
            if left and not wait.pause(self._report, f"waiting for {_format_members(left)} (step {step!r})"):
                raise MissingMembersError(self._describe_missing(left, step))

    def fail(self, message: str) -> None:
        """Publish that this member gives up, so that the others do not wait for it."""
        self.publish(_FAILED, message)

    def _create_root(self) -> None:
        if self.root.name in retry_transient(lambda: files.names(self.root.parent)):
            raise StoreError(
                f"{self.root}: exists already: another doctor uses this --id, or one was killed; remove the directory, "
                "or choose another --id"
            )
        draft = self.root.with_name(f"{self.root.name}.new")  # so that the directory is complete once it is visible
        files.make_directory(draft / "steps")
        self.created = True
        with files.as_store_error(self.root):
            retry(lambda: _rename(draft, self.root))
        files.await_visible(self._steps)  # if a reply was lost, this client may still cache that it is absent

    def _wait_for_root(self) -> None:
        wait = _Wait(self._timeout, _poll_interval(self.members.count))
        while self.root.name not in self._list(self.root.parent, {self.root.name}, wait):
            if not wait.pause(self._report, f"waiting for member 0 to create {self.root}"):
                raise MissingMembersError(
                    f"{self.root}: member 0 has not created it within {self._timeout:g} s; start doctor on all nodes "
                    "at the same time, with the same --id, in a directory that all of them share"
                )

    def _list(self, directory: Path, wanted: Set[str], wait: "_Wait") -> set[str]:
        """Return the names in ``directory``. While a name of ``wanted`` is missing, touch the directory at intervals.

        A client of NFS version 3 detects a change of a directory by its modification time. A name that is created in
        the same tick of the server's clock as the listing stays unlisted until the directory changes again.
        """
        before = set(retry_transient(lambda: files.names(directory)))
        if wanted <= before or not wait.touch_due():
            return before
        with contextlib.suppress(OSError):
            os.utime(directory)
        after = set(retry_transient(lambda: files.names(directory)))
        self.unlisted += bool(wanted & (after - before))
        return after

    def _raise_failure(self, names: Iterable[str]) -> None:
        found = next((name for name in names if name.startswith(f"{_FAILED}.")), None)
        if found is not None and found != f"{_FAILED}.{self.members.rank}":
            reason = json.loads(files.read(self._steps / found) or b'"it was ended"')
            raise StoreError(f"member {found.rpartition('.')[2]} gave up: {reason}")

    def _describe_missing(self, missing: list[int], step: str) -> str:
        """Describe which members are missing and why.

        A name that can be opened but is not listed shows a stale listing.
        """
        unlisted = [rank for rank in missing if files.read(self._steps / f"{step}.{rank}") is not None]
        if unlisted:
            return (
                f"{self.root.parent}: names by listing: never shown: a file that member {unlisted[0]} has created can "
                "be opened but is not listed; use another filesystem for the run's directory"
            )
        return (
            f"{self.root.parent}: no message from {_format_members(missing)} within {self._timeout:g} s (step "
            f"{step!r}); start doctor on all nodes at the same time, in a directory that all of them share"
        )


def _rename(draft: Path, root: Path) -> None:
    """Rename a directory. Ignore an error if the rename has taken effect, because a reply may be lost.

    The names are looked up in a listing, because a client may have cached that ``root`` is absent.
    """
    try:
        draft.rename(root)
    except OSError:
        names = retry_transient(lambda: files.names(root.parent))
        if draft.name in names or root.name not in names:
            raise


def _poll_interval(waiting: int) -> float:
    """Return the seconds between two polls of a member while ``waiting`` members wait.

    They grow with the number of members, to limit the load of the server.
    """
    return min(_LONGEST_POLL, 0.005 * max(1.0, waiting / 4))


class _Wait:
    """A wait that polls at a growing interval until its time-out, and reports progress at intervals."""

    def __init__(self, timeout: float, poll_interval: float) -> None:
        self._start = self._reported = self._touched = time.monotonic()
        self._timeout = timeout
        self._poll_interval = poll_interval

    def pause(self, report: Callable[[str], None], progress: str) -> bool:
        """Sleep until the next poll, and report ``progress`` at intervals. False after the time-out."""
        now = time.monotonic()
        waited = now - self._start
        if waited > self._timeout:
            return False
        if now - self._reported > _PROGRESS_INTERVAL:
            self._reported = now
            report(f"{progress}, {waited:.0f} s")
        time.sleep(max(self._poll_interval, min(0.25, waited / 20)))
        return True

    def touch_due(self) -> bool:
        """True once every `_TOUCH_INTERVAL` seconds."""
        now = time.monotonic()
        if now - self._touched < _TOUCH_INTERVAL:
            return False
        self._touched = now
        return True


def _format_members(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (", ..." if len(ranks) > 8 else "")
    return f"member{'s' if len(ranks) > 1 else ''} {shown}"
