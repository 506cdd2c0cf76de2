"""Describes the failure of a worker: by its exception, the end of its log, or the signal that ended it."""

import json
import os
import re
import signal
import time
from pathlib import Path

from hpcelastic.errors import StoreError
from hpcelastic.storage import files
from hpcelastic.storage.bounded import bounded

_READ_TIMEOUT = 5.0
"""Seconds in which the shared filesystem must return the files of the worker."""

_MAX_BYTES = 16 * 1024
_MAX_LINES = 40
_MAX_MESSAGE = 200
"""Characters of a message that fit into one line."""

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(
    rf'(?P<prefix>.*?){re.escape(_TRACEBACK)}$|(?P<other>\S.*?[\s:]|  )?  File "|(?P<boxed>\S.*?\s)[│╭╰][ ─]'
)
_EXCEPTION = re.compile(
    r"(?:(?:\w+\.)+[A-Z]\w*|[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Expired|Timeout|Closed|Found|Failed)|Exception)"
    r"(?::.*)?"
)
"""The last line of a traceback whose beginning is not in the text."""

_OF_LAUNCHER = re.compile(r"[\w.]*\b(?:ChildFailedError|ProcessExitedException|ProcessRaisedException)\b")
"""An exception of a launcher that reports the failure of its process, which may be in the text as well."""

_ENDS = re.compile(r"[\w.<>]+(?:: |:?$)")
"""The last line of a traceback: the exception, and its message if it has one."""


def describe_failure(exit_code: int, error_file: Path, log: Path | None) -> tuple[str, str, float]:
    """Return one line, a traceback (may be empty) and a wall-clock time for a worker that ended with ``exit_code``.

    ``exit_code`` is minus the signal's number if a signal ended the worker. torch's ``@record`` writes the error file;
    without one, the end of the log is used. This function does not wait for a filesystem that hangs.
    """
    how = describe_exit(exit_code)
    try:
        recorded, tail = bounded(
            lambda: (_read_error_file(error_file), _read_tail(log) if log else ""),
            _READ_TIMEOUT,
            f"{error_file.parent}",
        )
    except StoreError as error:
        recorded, tail = None, str(error)
    if recorded is not None:
        return _truncate(recorded[0]), recorded[1][-_MAX_BYTES:], recorded[2]
    found = _last_exception(_without_prefixes(tail))
    return (f"{_truncate(found)} ({how})" if found else how), tail, time.time()


_OF_MPIRUN = re.compile(r"^(?:\d{4}-\d\d-\d\dT[\d:.]+Z?:? )?\[\d+,\d+\]<std(?:out|err)>: ?", re.MULTILINE)
"""The tag of a line, with the time before it; source: mpirun(1), --tag-output."""


def _without_prefixes(text: str) -> str:
    """Return the text without what torch or a launcher has written before each line of a traceback."""
    prefix, found = "", []
    for line in _OF_MPIRUN.sub("", text).splitlines():
        begins = _FRAME.match(line)
        if begins is not None:
            prefix = begins["prefix"] or begins["other"] or begins["boxed"] or ""
        found.append(line.removeprefix(prefix if line.startswith(prefix) else prefix.rstrip()))
    return "\n".join(found)


def _last_exception(text: str) -> str:
    """Return the line of the last exception that has ended something; empty if there is none."""
    found, before, inside, ignored = "", "", False, False
    for line in text.splitlines():
        if line == _TRACEBACK:
            inside, ignored = True, "Exception ignored in" in before
        elif _ENDS.match(line) if inside else before[:1] in " \t╰" and _EXCEPTION.fullmatch(line.rstrip()):
            if not ignored and not (found and _OF_LAUNCHER.match(line)):
                found = line
            inside = ignored = False
        before = line or before
    return found


def _truncate(line: str) -> str:
    """Return the line without its middle if it is too long: both ends tell what happened."""
    end = _MAX_MESSAGE // 4
    return line if len(line) <= _MAX_MESSAGE else f"{line[: _MAX_MESSAGE - end - 1]}…{line[-end:]}"


def describe_exit(exit_code: int) -> str:
    """Describe an exit status in words."""
    if exit_code >= 0:
        return f"exit status {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"


def _read_error_file(error_file: Path) -> tuple[str, str, float] | None:
    try:
        content = json.loads(files.read(error_file) or b"null")
        message = content["message"]
        if isinstance(message, str):
            return message.strip().splitlines()[-1], message, time.time()
        extra = message.get("extraInfo", {})
        line = str(message["message"]).strip().splitlines()[0]
        return line, str(extra.get("py_callstack", "")), float(extra.get("timestamp", time.time()))
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError):
        return None  # the user's process writes this file: ignore it if it is malformed


def _read_tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_MAX_LINES:])
