"""The event log of one agent: JSON lines that tell a person, later, what happened."""

import contextlib
import json
import os
import queue
import threading
import time
from pathlib import Path
from typing import Any

from hpcelastic.errors import StoreError
from hpcelastic.store import files

MOST_WAITING = 1000
"""Events that may wait for the filesystem; more are dropped and counted."""


class EventLog:
    """Appends events to ``path``, in a thread of its own: a filesystem that hangs must not hang the agent.

    An event that can't be written is lost: a log must not stop a run. `close` it, or the last events may be lost too.
    """

    def __init__(self, path: Path, node: str) -> None:
        self._path = path
        self._node = node
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self._dropped = 0
        self._torn = False
        """True if the last line may be a part of one, so that the next must begin on a new one."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def write(self, event: str, **fields: Any) -> None:
        """Add one line: wall-clock time in seconds, node, event, fields. Returns at once."""
        line = self._line(event, fields)
        with self._lock:
            try:
                self._waiting.put_nowait(line)
            except queue.Full:
                self._dropped += 1
            if self._thread is None:  # not before: whoever makes a log may still fork
                self._thread = threading.Thread(target=self._run, name="events", daemon=True)
                self._thread.start()

    def close(self, timeout: float) -> bool:
        """Write what waits, for at most ``timeout`` seconds; False if that was too short. The last call of all."""
        deadline = time.monotonic() + timeout
        if self._thread is None:
            return True
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=timeout)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _line(self, event: str, fields: dict[str, Any]) -> bytes:
        return files.to_json({"time": round(time.time(), 3), "node": self._node, "event": event, **fields})

    def _run(self) -> None:
        while (line := self._waiting.get()) is not None:
            self._append(line)
            if self._waiting.empty():
                self._own_up()
            self._waiting.task_done()
        self._own_up()

    def _own_up(self) -> None:
        """Say in the log itself how much of it is missing."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._append(self._line("events dropped", {"count": dropped}))

    def _append(self, line: bytes) -> None:
        data = b"\n" + line if self._torn else line
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._torn = True
            try:
                while data:
                    data = data[os.write(fd, data) :]
            finally:
                os.close(fd)  # which may be what says that the disk is full
            self._torn = False


def read_events(directory: Path) -> list[dict[str, Any]]:
    """The events of all agents, by time; a line that was cut off by a death, or is no event, is left out."""
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
