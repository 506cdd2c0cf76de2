"""The event log of one agent: JSON lines that tell a person, later, what happened."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from hpcelastic.errors import StoreError
from hpcelastic.store import files


class EventLog:
    """Appends events to ``path``. An event that can't be written is lost: a log must not stop a run."""

    def __init__(self, path: Path, node: str) -> None:
        self._path = path
        self._node = node
        self._lock = threading.Lock()

    def write(self, event: str, **fields: Any) -> None:
        """Add one line: wall-clock time in seconds, node, event, fields."""
        line = files.to_json({"time": round(time.time(), 3), "node": self._node, "event": event, **fields})
        with self._lock:
            try:
                fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            except OSError:
                return
            try:
                os.write(fd, line)
            except OSError:
                return
            finally:
                os.close(fd)


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
