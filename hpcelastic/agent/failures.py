"""What is known of a worker that failed: its exception, its last words, or the signal that ended it."""

import json
import os
import re
import signal
import time
from pathlib import Path

from hpcelastic.errors import StoreError
from hpcelastic.store import files
from hpcelastic.store.bounded import bounded

_PATIENCE = 5.0
"""Seconds that the shared filesystem may take to show what the worker has left."""

_TAIL = 16 * 1024
_LINES = 40
_LONGEST = 200
"""Characters of a message that goes into one line."""


def describe_failure(exit_code: int, error_file: Path, log: Path | None) -> tuple[str, str, float]:
    """One line, a traceback (may be empty) and a wall-clock time for a worker that ended with ``exit_code``.

    ``exit_code`` is minus the signal's number where a signal ended it. The error file is what torch's ``@record``
    writes; without one, the end of the log serves. A filesystem that hangs is not waited for.
    """
    how = describe_exit(exit_code)
    try:
        recorded, tail = bounded(
            lambda: (_recorded(error_file), _tail(log) if log else ""), _PATIENCE, f"{error_file.parent}"
        )
    except StoreError as error:
        recorded, tail = None, str(error)
    if recorded is not None:
        return _short(recorded[0]), recorded[1][-_TAIL:], recorded[2]
    found = re.findall(r"^Traceback \(most recent call last\):\n(?:.*\n)*?(?=\S)(?!Traceback)(.+)$", tail, re.MULTILINE)
    if found:
        return f"{_short(found[-1])} ({how})", tail, time.time()
    return how, tail, time.time()


def _short(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def describe_exit(exit_code: int) -> str:
    """An exit status in words."""
    if exit_code >= 0:
        return f"exit status {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"


def _recorded(error_file: Path) -> tuple[str, str, float] | None:
    try:
        content = json.loads(files.read(error_file) or b"null")
        message = content["message"]
        if isinstance(message, str):
            return message.strip().splitlines()[-1], message, time.time()
        extra = message.get("extraInfo", {})
        line = str(message["message"]).strip().splitlines()[0]
        return line, str(extra.get("py_callstack", "")), float(extra.get("timestamp", time.time()))
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError):
        return None  # the file is the user's process's word: take it if it makes sense


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_LINES:])
