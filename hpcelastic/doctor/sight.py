"""How late a node sees what another changes.

Member 0 writes and all others watch; at the same time member 1 writes and member 0 watches. No two clocks are
compared: a watcher starts its clock when it hears, by listing another directory, that the writer has finished, and
stops it when the change shows. Since the writer says so only after it has changed everything, a lag is never measured
too long; it is too short by what hearing takes, which the round trip of a name bounds.

Each way of looking has a directory of its own: listing a directory, or opening a name in it, would refresh what the
client remembers of it, and so hide what the next way is to find out.
"""

import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hpcelastic.doctor.measurements import Lag, Sight
from hpcelastic.doctor.meeting import Meeting
from hpcelastic.doctor.probe import number_in, whole_content
from hpcelastic.doctor.trials import persistently
from hpcelastic.store import files

WAYS = ("new_by_listing", "new_by_open", "new_by_stat", "content", "mtime", "gone")

_REPLACEMENTS = 20
_BEAT = 0.02
"""Seconds between two replacements."""

_PACE = 0.02
"""Seconds between two looks of a watcher, for a few members."""

_OLD = 1_000_000_000
"""A modification time that no file has by itself: seconds since 1970."""


@dataclass(frozen=True)
class Patience:
    """Seconds: how long names are asked for before they come, and how long a change is waited for."""

    before: float
    after: float


QUICK = Patience(0.3, 3.0)
FULL = Patience(1.0, 35.0)


def prepare(root: Path) -> None:
    """Make what a writer is going to change, one directory for each way of looking."""
    for way in WAYS:
        persistently(partial(files.make_directory, root / way))
    for way in ("mtime", "gone"):
        persistently(partial((root / way / "x").write_bytes, b"0"))
    persistently(lambda: os.utime(root / "mtime" / "x", (_OLD, _OLD)))
    persistently(partial(files.publish, root / "content" / "x", whole_content(0), durable=False))


def change(root: Path) -> None:
    """Make every change that watchers are waiting for."""
    for number in range(1, _REPLACEMENTS + 1):
        persistently(partial(files.publish, root / "content" / "x", whole_content(number), durable=False))
        time.sleep(_BEAT)
    persistently(lambda: _write_on(root / "mtime" / "x"))
    files.remove(root / "gone" / "x")
    for way in WAYS[:3]:
        persistently(partial((root / way / "x").write_bytes, b"1"))


def _write_on(path: Path) -> None:
    """Write to a file in place, which gives it a new modification time."""
    with path.open("ab") as file:
        file.write(b"1")
        file.flush()
        os.fsync(file.fileno())


def see(meeting: Meeting, patience: Patience) -> Sight:
    """What this member sees of another's changes, after making its own if it is a writer."""
    me = meeting.members.rank
    writers = [0, 1]
    mine, theirs = (meeting.root / f"sight-{rank}" for rank in (me, 1 if me == 0 else 0))
    if me in writers:
        prepare(mine)
        meeting.say("prepared")
    meeting.hear("prepared", writers)
    watches = Watches(theirs, _PACE * max(1.0, meeting.members.count / 8))
    try:
        watches.start()
        meeting.say("watching")
        if me in writers:
            meeting.hear("watching", meeting.members.others if me == 0 else [0])
            time.sleep(patience.before)
            change(mine)
            meeting.say("changed")
        meeting.hear("changed", [1 if me == 0 else 0])
        return watches.result(time.monotonic(), patience.after)
    finally:
        watches.stop()


@dataclass
class Watch:
    """One way of looking, again and again, in a thread of its own, until it shows the change."""

    look: Callable[[], bool]
    looked: threading.Event = field(default_factory=threading.Event)
    seen: threading.Event = field(default_factory=threading.Event)
    time: float = 0.0
    """When the look that showed it was over."""

    def run(self, pace: float, stop: threading.Event) -> None:
        start = time.monotonic()
        while not stop.is_set():
            try:
                shown = self.look()
            except OSError:
                shown = False
            self.looked.set()
            if shown:
                self.time = time.monotonic()
                self.seen.set()
                return
            stop.wait(max(pace, (time.monotonic() - start) / 50))


class Watches:
    """All ways of looking at what the writer of the directory ``root`` does."""

    def __init__(self, root: Path, pace: float) -> None:
        self._pace = pace
        self._since = time.monotonic()
        self._stop = threading.Event()
        self._content = _Content(root / "content" / "x")
        self._watches = {
            "new_by_listing": Watch(lambda: "x" in os.listdir(root / "new_by_listing")),
            "new_by_open": Watch(lambda: _opens(root / "new_by_open" / "x")),
            "new_by_stat": Watch(lambda: _is_there(root / "new_by_stat" / "x")),
            "content": Watch(self._content.look),
            "mtime": Watch(lambda: os.stat(root / "mtime" / "x").st_mtime != _OLD),
            "gone": Watch(lambda: not _is_there(root / "gone" / "x")),
        }

    def start(self) -> None:
        """Look until each way has looked once, at least: only a name that was asked for is remembered as absent."""
        for name, watch in self._watches.items():
            thread = threading.Thread(target=watch.run, args=(self._pace, self._stop), name=name, daemon=True)
            thread.start()
        for watch in self._watches.values():
            watch.looked.wait(5.0)

    def result(self, since: float, limit: float) -> Sight:
        """What each way shows within ``limit`` seconds of ``since``, when the watcher heard of the changes."""
        lags = {name: _lag(watch, since, limit) for name, watch in self._watches.items()}
        content, watched = self._content, round(since - self._since, 3)
        return Sight(**lags, watched=watched, backwards=content.backwards, torn=content.torn, missing=content.missing)

    def stop(self) -> None:
        self._stop.set()


def _lag(watch: Watch, since: float, limit: float) -> Lag:
    if not watch.seen.wait(max(0.0, since + limit - time.monotonic())):
        return Lag(None, limit)
    return Lag(round(max(0.0, watch.time - since), 4), limit)


class _Content:
    """Reads a file that is being replaced, and counts what should not be."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest = 0
        self.backwards = self.torn = self.missing = 0

    def look(self) -> bool:
        try:
            content = self._path.read_bytes()
        except OSError:
            self.missing += 1
            return False
        number = number_in(content)
        if number is None:
            self.torn += 1
            return False
        self.backwards += number < self._newest
        self._newest = max(self._newest, number)
        return number == _REPLACEMENTS


def _opens(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except FileNotFoundError:
        return False
    return True


def _is_there(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False
