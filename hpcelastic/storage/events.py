"""The event log of one agent, in JSON lines."""

import contextlib
import json
import os
import queue
import threading
import time
from pathlib import Path
from typing import Any

from hpcelastic.errors import StoreError
from hpcelastic.protocol.events import Event, EventsDropped, LoggedEvent, parse, to_fields
from hpcelastic.storage import files

MAX_QUEUED = 1000
"""Events that are queued for the filesystem at most. Further events are dropped and counted."""


class EventLog:
    """A log that appends events to ``path`` in a thread of its own, because the filesystem may hang.

    An event that can't be written is lost: a log must not stop a run. Without a call of `close` the last events may be
    lost too.
    """

    def __init__(self, path: Path, node: str) -> None:
        self._path = path
        self._node = node
        self._queue: queue.Queue[bytes | None] = queue.Queue(MAX_QUEUED)
        self._dropped = 0
        self._line_incomplete = False
        """True if the last line may be incomplete. The next event must then begin on a new line."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def write(self, event: Event) -> None:
        """Queue one line: wall-clock time in seconds, node, kind of the event, fields. Returns at once."""
        line = self._line(event)
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

    def _line(self, event: Event) -> bytes:
        now = round(time.time(), 3)
        return files.to_json({"time": now, "node": self._node, "event": event.kind, **to_fields(event)})

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            self._append(line)
            if self._queue.empty():
                self._report_dropped()
            self._queue.task_done()
        self._report_dropped()

    def _report_dropped(self) -> None:
        """Write the number of dropped events to the log."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._append(self._line(EventsDropped(count=dropped)))

    def _append(self, line: bytes) -> None:
        data = b"\n" + line if self._line_incomplete else line
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._line_incomplete = True
            try:
                while data:
                    data = data[os.write(fd, data) :]
            finally:
                os.close(fd)  # close, too, may report that the disk is full
            self._line_incomplete = False


def read_events(directory: Path) -> list[LoggedEvent]:
    """Return the events of all agents by time. Incomplete lines and lines that are no event are skipped."""
    return [event for line in read_event_lines(directory) if (event := _logged_event(line)) is not None]


def _logged_event(line: dict[str, Any]) -> LoggedEvent | None:
    fields = {name: value for name, value in line.items() if name not in ("time", "node", "event")}
    kind, node = line.get("event"), line.get("node")
    if not isinstance(kind, str) or not isinstance(node, str):
        return None
    return LoggedEvent(float(line["time"]), node, parse(kind, fields))


def read_event_lines(directory: Path) -> list[dict[str, Any]]:
    """Return the lines of all event logs by time, as they are in JSON; otherwise the same as `read_events`."""
    found = []
    for name in files.names(directory):
        try:
            lines = (files.read(directory / name) or b"").splitlines()
        except OSError as error:
            raise StoreError(f"{directory / name}: {error.strerror}") from error
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and isinstance(event.get("time"), int | float):
                found.append(event)
    return sorted(found, key=lambda event: event["time"])
