"""The event log of one agent, in JSON lines."""

import contextlib
import json
import os
import queue
import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from hpcelastic.errors import StoreError
from hpcelastic.protocol.events import AgentStarted, ClockMeasured, Event, EventsDropped, LoggedEvent, parse, to_fields
from hpcelastic.storage import files, modes
from hpcelastic.storage.clock import ClockOffset, measure_offset, now, offset_of

_SUFFIX = ".jsonl"
"""The end of the name of each log."""

_ROUND = re.compile(rb'"round":([0-9]{1,18})')
"""The round of an event, in a line of a log."""

_CLOCK_INTERVAL = 600.0
"""Seconds after which the filesystem's clock is measured again, with the next event."""

_STARTED, _MEASURED = (f'"event":"{kind}"'.encode() for kind in (AgentStarted.kind, ClockMeasured.kind))

_NEXT_LINE = re.compile(rb'{"next_line":([0-9]{1,18})}')
"""A line in place of removed lines. It has the number of the line that follows."""

MAX_QUEUED = 1000
"""Events that are queued for the filesystem at most. Further events are dropped and counted."""

MAX_BYTES = 2 << 20
"""The size of a log from which on events of old rounds are removed, at a random size up to a quarter larger."""


class EventLog:
    """A log that appends events to ``path`` in a thread of its own, because the filesystem may hang.

    An event that can't be written is lost: a log must not stop a run. Without a call of `close` the last events may be
    lost too. ``oldest`` is called in the thread when the log is large. It returns the first round whose events stay,
    and may raise StoreError. Without it all events stay.
    """

    def __init__(self, path: Path, node: str, oldest: Callable[[], int] | None = None) -> None:
        self._path = path
        self._node = node
        self._oldest = oldest
        self._limit = _limit_after(0)
        """The size at which events of old rounds are removed next."""

        self._queue: queue.Queue[bytes | None] = queue.Queue(MAX_QUEUED)
        self._dropped = 0
        self._line_incomplete = False
        """True if the last line may be incomplete. The next event must then begin on a new line."""
        self.clock: ClockOffset | None = None
        """The newest measurement of the filesystem's clock; None before the first event is written."""

        self._logged_clock: ClockOffset | None = None
        """The measurement that was logged last."""

        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def write(self, event: Event) -> None:
        """Queue one line: times in seconds, node, kind of the event, fields. Returns at once."""
        line = event_line(event, self._node)
        with self._lock:
            try:
                self._queue.put_nowait(line)
            except queue.Full:
                self._dropped += 1
            if self._thread is None:  # not earlier: the process may fork after it creates the log
                self._thread = threading.Thread(target=self._run, name="events", daemon=True)
                self._thread.start()

    def close(self, timeout: float) -> bool:
        """Write the queued events for at most ``timeout`` seconds; return False if events are left.

        No other method may be called afterwards.
        """
        deadline = time.monotonic() + timeout
        if self._thread is None:
            return True
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=timeout)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            size = self._append(line)
            if size > self._limit and self._oldest is not None:
                self._remove_old_rounds(size, self._oldest)
            self._update_clock()
            if self._queue.empty():
                self._report_dropped()
            self._queue.task_done()
        self._report_dropped()

    def filesystem_time(self) -> float | None:
        """Return the present time on the clock of the run's filesystem, as far as it is known."""
        return None if self.clock is None else self.clock.time(now())

    def _update_clock(self) -> None:
        """Measure the filesystem's clock if that is due, and log a measurement that contradicts the last one."""
        if self.clock is None:
            return
        if now() - self.clock.measured >= _CLOCK_INTERVAL:
            with contextlib.suppress(OSError):
                self.clock = measure_offset(self._path.parent)
        if self._logged_clock is None or not self.clock.agrees_with(self._logged_clock):
            self._logged_clock = self.clock
            measured = ClockMeasured(least=round(self.clock.least, 6), most=round(self.clock.most, 6))
            self._append(event_line(measured, self._node))

    def _report_dropped(self) -> None:
        """Write the number of dropped events to the log."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._append(event_line(EventsDropped(count=dropped), self._node))

    def _append(self, line: bytes) -> int:
        """Write a line, and return the size of the log; 0 if the line could not be written."""
        data = b"\n" + line if self._line_incomplete else line
        with contextlib.suppress(OSError):
            fd = self._open()
            self._line_incomplete = True
            try:
                while data:
                    data = data[os.write(fd, data) :]
                size = os.fstat(fd).st_size
            finally:
                os.close(fd)  # close, too, may report that the disk is full
            self._line_incomplete = False
            return size
        return 0

    def _remove_old_rounds(self, size: int, oldest: Callable[[], int]) -> None:
        with contextlib.suppress(Exception):  # the thread must go on, also if a module cannot be imported any more
            size = remove_before(self._path, oldest())
        self._limit = _limit_after(size)

    def _open(self) -> int:
        """Open the log. If this creates the log, its times measure the filesystem's clock."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        if self.clock is None:
            before = now()
            with contextlib.suppress(FileExistsError):
                fd = modes.create(self._path, flags | os.O_EXCL)
                self.clock = offset_of(os.fstat(fd).st_ctime, before, now())
                return fd
            self.clock = measure_offset(self._path.parent)
        return os.open(self._path, flags, 0o600)


def _limit_after(size: int) -> float:
    """Return the size at which events are removed from a log that has ``size`` bytes now.

    It is random, because the logs of thousands of agents grow in step, and each removal reads and writes megabytes.
    """
    return max(MAX_BYTES, size + MAX_BYTES / 2) * random.uniform(1.0, 1.25)


def remove_before(path: Path, round: int) -> int:
    """Remove the lines before the first event of ``round`` or a later one, and return the size of the log.

    The events that describe the agent and its clock stay. Raises StoreError if the log can't be read or replaced.
    """
    content = _content(path)
    numbered = list(_numbered(content))
    first = next((i for i, (_, line) in enumerate(numbered) if _round_of(line) >= round), 0)
    removed = [line for _, line in numbered[:first]]
    kept = [line for line in removed if _STARTED in line] + [line for line in removed if _MEASURED in line][-1:]
    if len(kept) == len(removed):
        return len(content)
    number = b'{"next_line":%d}\n' % numbered[first][0]
    content = b"".join([*kept, number, *(line for _, line in numbered[first:])])
    files.publish(path, content, durable=False)
    return len(content)


def _round_of(line: bytes) -> int:
    """Return the round of an event; 0 if it belongs to none."""
    found = _ROUND.search(line)
    return int(found[1]) if found else 0


def _numbered(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a log, with the numbers that they had before lines were removed."""
    number = 0
    for line in content.splitlines(keepends=True):
        if following := _NEXT_LINE.match(line):
            number = int(following[1]) - 1
        else:
            number += 1
            yield number, line


def event_line(event: Event, node: str) -> bytes:
    """Return the line of an event that happens now."""
    times = {"time": round(time.time(), 6), "up": round(now(), 6)}
    return files.to_json({**times, "node": node, "event": event.kind, **to_fields(event)})


def read_events(directory: Path) -> list[LoggedEvent]:
    """Return the events of all agents by time. Incomplete lines and lines that are no event are skipped."""
    return [event for line in read_event_lines(directory) if (event := _logged_event(line))]


def _logged_event(line: dict[str, Any], number: int = 0) -> LoggedEvent | None:
    fields = {name: value for name, value in line.items() if name not in ("time", "up", "node", "event")}
    kind, node, up = line.get("event"), line.get("node"), line.get("up")
    if not isinstance(kind, str) or not isinstance(node, str):
        return None
    known_up = up if isinstance(up, int | float) else None
    return LoggedEvent(float(line["time"]), node, parse(kind, fields), known_up, number)


def read_logs(
    directory: Path, rounds: Collection[int] | None = None, without: Collection[str] = ()
) -> dict[str, list[LoggedEvent]]:
    """Return the events of each agent in the order of its log, by ``NAME@INCARNATION``; otherwise as `read_events`.

    With ``rounds``, events of other rounds are left out, and events that belong to no round are not. This takes much
    less time. The logs of the agents ``without`` are not read.
    """
    return {
        node: [
            event
            for number, line in _lines(directory / f"{node}{_SUFFIX}", rounds)
            if (event := _logged_event(line, number))
        ]
        for node in agents_with_logs(directory)
        if node not in without
    }


def agents_with_logs(directory: Path) -> list[str]:
    """Return the agents that have a log in ``directory``, as ``NAME@INCARNATION``, sorted."""
    return sorted(name.removesuffix(_SUFFIX) for name in files.names(directory) if name.endswith(_SUFFIX))


def read_event_lines(directory: Path) -> list[dict[str, Any]]:
    """Return the lines of all event logs by time, as they are in JSON; otherwise the same as `read_events`."""
    found = [line for name in files.names(directory) for _, line in _lines(directory / name)]
    return sorted(found, key=lambda line: line["time"])


def last_round_ended_by(directory: Path, causes: Collection[str]) -> int:
    """Return the newest round that has ended by one of ``causes``, from the texts of the logs alone; 0 if none has."""
    newest = 0
    for name in files.names(directory):
        content = _content(directory / name)
        for cause in causes:
            found = content.rfind(f'"cause":"{cause}"'.encode())
            if found >= 0 and (round := _ROUND.search(content, content.rfind(b"\n", 0, found) + 1, found)):
                newest = max(newest, int(round[1]))
    return newest


def _lines(path: Path, rounds: Collection[int] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines of a log with their numbers, as they are in JSON.

    Incomplete lines, lines that are no event, and lines of other rounds than ``rounds`` are skipped.
    """
    for number, line in _numbered(_content(path)):
        if rounds is not None and (round := _round_of(line)) and round not in rounds:
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(time := event.get("time"), int | float) and 0 <= time < 2**63:
            yield number, event


def _content(path: Path) -> bytes:
    try:
        return files.read(path) or b""
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
