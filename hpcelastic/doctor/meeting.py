"""How members on several nodes do something together through nothing but the directory that they examine.

Member 0 makes a directory for the meeting; all others find it by listing, which is also how each finds what another
has said. Nobody waits without a bound, and who waits says for whom.
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

from hpcelastic.doctor.trials import persistently
from hpcelastic.errors import StoreError
from hpcelastic.store import files
from hpcelastic.store.errnos import repeated

PREFIX = ".doctor-"

_NEWS = 5.0
"""Seconds between two lines that say who is waited for."""

_STIR = 2.0
"""Seconds after which a listing that does not show what is waited for is suspected to be stale for good."""

_FAILED = "failed"


@dataclass(frozen=True)
class Members:
    """Who takes part, and which of them this is."""

    count: int = 1
    rank: int = 0
    id: str = "alone"
    """The same for all members of one meeting, and for those of no other."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"the number of members is {self.count}; it must be 1 or more")
        if not 0 <= self.rank < self.count:
            raise ValueError(f"rank {self.rank} is none of 0..{self.count - 1}")

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.count) if rank != self.rank]

    @property
    def pace(self) -> float:
        """Seconds between two looks of one member; longer the more there are, to spare the server."""
        return 0.005 * max(1.0, self.count / 4)


class Absent(StoreError):
    """Members did not say in time what was waited for."""


class Meeting:
    """What one member says to the others and hears from them. ``patience`` is in seconds, for each wait."""

    def __init__(self, directory: Path, members: Members, patience: float, tell: Callable[[str], None]) -> None:
        self.root = directory / f"{PREFIX}{members.id}"
        self.members = members
        self.opened = False
        """True once this member has made the directory, and has to remove it."""
        self.unlisted = 0
        """How often a name that was there was not listed before its directory had been touched."""
        self._steps = self.root / "steps"
        self._patience = patience
        self._tell = tell

    def open(self) -> None:
        """Make the meeting's directory, or wait until member 0 has."""
        if self.members.rank == 0:
            self._make()
        else:
            self._await_root()

    def say(self, step: str, value: Any = None) -> None:
        """Let the others know that this member has come to ``step``, with a JSON value."""
        path, data = self._steps / f"{step}.{self.members.rank}", files.to_json(value)
        persistently(lambda: files.publish(path, data, durable=False))

    def hear(self, step: str, ranks: Iterable[int]) -> dict[int, Any]:
        """What each of ``ranks`` has said at ``step``; Absent names those that say nothing in time."""
        wanted = {f"{step}.{rank}": rank for rank in ranks}
        heard: dict[int, Any] = {}
        wait = _Wait(self._patience, self.members.pace)
        while len(heard) < len(wanted):
            names = self._list(self._steps, wanted.keys(), wait)
            self._raise_failure(names)
            for name in wanted.keys() & names:
                content = None if wanted[name] in heard else persistently(partial(files.read, self._steps / name))
                if content is not None:
                    heard[wanted[name]] = json.loads(content)
            missing = sorted(set(wanted.values()) - heard.keys())
            if missing and not wait.turn(self._tell, f"waiting for {_named(missing)} ({step})"):
                raise Absent(self._absent(missing, step))
        return heard

    def fail(self, message: str) -> None:
        """Let the others know that this member gives up, so that they need not wait for it."""
        self.say(_FAILED, message)

    def _make(self) -> None:
        if repeated(self.root.exists):
            raise StoreError(
                f"{self.root}: exists already: another doctor uses this --id, or one was killed; remove it, or take "
                "another --id"
            )
        draft = self.root.with_name(f"{self.root.name}.new")  # so that who finds it finds it complete
        files.make_directory(draft / "steps")
        self.opened = True
        with files.explained(self.root):
            repeated(lambda: _move(draft, self.root))

    def _await_root(self) -> None:
        wait = _Wait(self._patience, self.members.pace)
        while self.root.name not in self._list(self.root.parent, {self.root.name}, wait):
            if not wait.turn(self._tell, f"waiting for member 0 to make {self.root}"):
                raise Absent(
                    f"{self.root}: member 0 has not made it within {self._patience:g} s; start doctor on all nodes "
                    "at once, with the same --id, in a directory that all of them share"
                )

    def _list(self, directory: Path, wanted: Set[str], wait: "_Wait") -> set[str]:
        """The names in ``directory``. Now and then it is touched, should not all be there that are wanted.

        A client of NFS version 3 knows from the directory's modification time that it has changed; a name that comes in
        the same tick of the server's clock as the listing stays unlisted until the directory changes again.
        """
        before = set(persistently(lambda: files.names(directory)))
        if wanted <= before or not wait.stirs():
            return before
        with contextlib.suppress(OSError):
            os.utime(directory)
        after = set(persistently(lambda: files.names(directory)))
        self.unlisted += bool(wanted & (after - before))
        return after

    def _raise_failure(self, names: Iterable[str]) -> None:
        found = next((name for name in names if name.startswith(f"{_FAILED}.")), None)
        if found is not None and found != f"{_FAILED}.{self.members.rank}":
            why = json.loads(files.read(self._steps / found) or b'"it was ended"')
            raise StoreError(f"member {found.rpartition('.')[2]} gave up: {why}")

    def _absent(self, missing: list[int], step: str) -> str:
        """Who is missing and why, as far as asking for names that are not listed can tell."""
        unlisted = [rank for rank in missing if files.read(self._steps / f"{step}.{rank}") is not None]
        if unlisted:
            return (
                f"{self.root.parent}: names by listing: never shown: what member {unlisted[0]} has made can be opened "
                "and is not listed; use another filesystem for the run's directory"
            )
        return (
            f"{self.root.parent}: no sign of {_named(missing)} within {self._patience:g} s (at {step!r}); start doctor "
            "on all nodes at once, and name a directory that all of them share"
        )


def _move(draft: Path, root: Path) -> None:
    """Rename a directory; an error may be that of a reply that was lost."""
    try:
        draft.rename(root)
    except OSError:
        if draft.exists() or not root.exists():
            raise


class _Wait:
    """Looks at a growing distance, until patience ends; news now and then."""

    def __init__(self, patience: float, pace: float) -> None:
        self._start = self._news = self._stirred = time.monotonic()
        self._patience = patience
        self._pace = pace

    def turn(self, tell: Callable[[str], None], news: str) -> bool:
        """Wait for one look, telling ``news`` now and then; False if patience has ended."""
        now = time.monotonic()
        waited = now - self._start
        if waited > self._patience:
            return False
        if now - self._news > _NEWS:
            self._news = now
            tell(f"{news}, {waited:.0f} s")
        time.sleep(min(0.25, max(self._pace, waited / 20)))
        return True

    def stirs(self) -> bool:
        """True every now and then."""
        now = time.monotonic()
        if now - self._stirred < _STIR:
            return False
        self._stirred = now
        return True


def _named(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (", ..." if len(ranks) > 8 else "")
    return f"member{'s' if len(ranks) > 1 else ''} {shown}"
