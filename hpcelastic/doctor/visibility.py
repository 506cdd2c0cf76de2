"""Delay until a node sees the changes of another node.

Member 0 writes and all others watch; at the same time member 1 writes and member 0 watches. No two clocks are
compared: a watcher starts its clock when it finds, by listing another directory, that the writer has finished, and
stops it when the change is visible. The writer publishes that step only after it has made every change, so a lag is
never measured too long. It may be too short by the delay of that message, which the round trip of a name bounds, and by
the time between two polls of a watcher, which grows with the number of members.

Each way to detect a change has its own directory: listing a directory, or opening a name in it, would refresh the
client's cache of it, and so hide the lag of the next way.
"""

import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hpcelastic.doctor.bounded_calls import retry_transient
from hpcelastic.doctor.coordination import Coordination
from hpcelastic.doctor.measurements import Lag, Visibility
from hpcelastic.doctor.probe import number_in, whole_content
from hpcelastic.storage import files

METHODS = ("new_by_listing", "new_by_open", "new_by_stat", "content", "mtime", "gone")
"""The ways to detect a change, by the names of the fields of `Visibility`."""

_REPLACEMENTS = 20
_REPLACEMENT_INTERVAL = 0.02
"""Seconds between two replacements."""

_POLL_INTERVAL = 0.02
"""Seconds between two polls of a watcher, with up to 8 members."""

_OLD_MTIME = 1_000_000_000
"""A modification time that no new file has: seconds since 1970."""


@dataclass(frozen=True)
class WaitLimits:
    """Seconds for which names are polled before they exist, and for which a change is awaited."""

    before: float
    after: float


QUICK = WaitLimits(0.3, 3.0)
FULL = WaitLimits(1.0, 35.0)


def prepare_files(root: Path) -> None:
    """Create the files that a writer will change, in one directory for each method."""
    for method in METHODS:
        retry_transient(partial(files.make_directory, root / method))
    for method in ("mtime", "gone"):
        retry_transient(partial((root / method / "x").write_bytes, b"0"))
    retry_transient(lambda: os.utime(root / "mtime" / "x", (_OLD_MTIME, _OLD_MTIME)))
    retry_transient(partial(files.publish, root / "content" / "x", whole_content(0), durable=False))


def change_files(root: Path) -> None:
    """Make every change that the watchers await."""
    for number in range(1, _REPLACEMENTS + 1):
        retry_transient(partial(files.publish, root / "content" / "x", whole_content(number), durable=False))
        time.sleep(_REPLACEMENT_INTERVAL)
    retry_transient(lambda: _append(root / "mtime" / "x"))
    files.remove(root / "gone" / "x")
    for method in METHODS[:3]:
        retry_transient(partial((root / method / "x").write_bytes, b"1"))


def _append(path: Path) -> None:
    """Append to a file in place, which changes its modification time."""
    with path.open("ab") as file:
        file.write(b"1")
        file.flush()
        os.fsync(file.fileno())


def measure_visibility(coordination: Coordination, limits: WaitLimits) -> Visibility:
    """Make this member's changes if it is a writer, and measure when it sees the other writer's changes."""
    me = coordination.members.rank
    writers = [0, 1]
    own, other = (coordination.root / f"visibility-{rank}" for rank in (me, 1 if me == 0 else 0))
    if me in writers:
        prepare_files(own)
        coordination.publish("files prepared")
    coordination.receive("files prepared", writers)
    probes = ChangeProbes(other, _POLL_INTERVAL * max(1.0, coordination.members.count / 8))
    try:
        probes.start()
        coordination.publish("watching")
        if me in writers:
            coordination.receive("watching", coordination.members.others if me == 0 else [0])
            time.sleep(limits.before)
            change_files(own)
            coordination.publish("files changed")
        coordination.receive("files changed", [1 if me == 0 else 0])
        return probes.result(time.monotonic(), limits.after)
    finally:
        probes.stop()


@dataclass
class ChangeProbe:
    """One way to detect a change, polled in its own thread until it shows the change."""

    check: Callable[[], bool]
    polled: threading.Event = field(default_factory=threading.Event)
    """Set after the first poll."""

    seen: threading.Event = field(default_factory=threading.Event)
    time: float = 0.0
    """Time at which the poll that showed the change ended."""

    def run(self, interval: float, stop: threading.Event) -> None:
        start = time.monotonic()
        while not stop.is_set():
            try:
                seen = self.check()
            except OSError:
                seen = False
            self.polled.set()
            if seen:
                self.time = time.monotonic()
                self.seen.set()
                return
            stop.wait(max(interval, (time.monotonic() - start) / 50))


class ChangeProbes:
    """All probes of the changes that a writer makes in its directory ``root``. ``interval`` is in seconds."""

    def __init__(self, root: Path, interval: float) -> None:
        self._interval = interval
        self._since = time.monotonic()
        self._stop = threading.Event()
        self._content = _ContentReader(root / "content" / "x")
        self._probes = {
            "new_by_listing": ChangeProbe(lambda: "x" in os.listdir(root / "new_by_listing")),
            "new_by_open": ChangeProbe(lambda: _can_open(root / "new_by_open" / "x")),
            "new_by_stat": ChangeProbe(lambda: _exists(root / "new_by_stat" / "x")),
            "content": ChangeProbe(self._content.check),
            "mtime": ChangeProbe(lambda: os.stat(root / "mtime" / "x").st_mtime != _OLD_MTIME),
            "gone": ChangeProbe(lambda: not _exists(root / "gone" / "x")),
        }

    def start(self) -> None:
        """Start all probes and wait for the first poll of each: a poll makes the client cache that a name is absent."""
        for name, probe in self._probes.items():
            thread = threading.Thread(target=probe.run, args=(self._interval, self._stop), name=name, daemon=True)
            thread.start()
        for probe in self._probes.values():
            probe.polled.wait(5.0)

    def result(self, since: float, limit: float) -> Visibility:
        """Return the lags after ``since``, when the watcher learned of the changes. Wait at most ``limit`` seconds."""
        lags = {name: _lag(probe, since, limit) for name, probe in self._probes.items()}
        content, watched = self._content, round(since - self._since, 3)
        return Visibility(
            **lags, watched=watched, backwards=content.backwards, torn=content.torn, missing=content.missing
        )

    def stop(self) -> None:
        self._stop.set()


def _lag(probe: ChangeProbe, since: float, limit: float) -> Lag:
    if not probe.seen.wait(max(0.0, since + limit - time.monotonic())):
        return Lag(None, limit)
    return Lag(round(max(0.0, probe.time - since), 4), limit)


class _ContentReader:
    """Reads a file while it is replaced, and counts wrong reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest = 0
        self.backwards = self.torn = self.missing = 0

    def check(self) -> bool:
        """Read the file once. True if it has the content of the last replacement."""
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


def _can_open(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except FileNotFoundError:
        return False
    return True


def _exists(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False
