"""Describes the failure of a worker: by its exception, the end of its log, or the signal that ended it."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from hpcelastic.agent.guard_main import boottime
from hpcelastic.agent.worker import Worker
from hpcelastic.errors import StoreError
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.marks import MarkRing
from hpcelastic.protocol.events import WorkerEnded
from hpcelastic.protocol.findings import RollbackDemand
from hpcelastic.protocol.state import Failure
from hpcelastic.storage import files
from hpcelastic.storage.bounded import bounded

T = TypeVar("T")

_READ_TIMEOUT = 5.0
"""Seconds in which the shared filesystem must return the files of the worker."""

_MAX_BYTES = 16 * 1024
_MAX_LINES = 40
_MAX_MESSAGE = 200
"""Characters of a message that fit into one line."""


class FailedCollective(NamedTuple):
    """A failed collective, which counts as a failure of its worker unless another cause ends the round before."""

    failure: Failure
    at: float
    """The time at which it counts."""


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
    plain = re.sub(r"^\[rank[0-9]+\]: ?", "", tail, flags=re.MULTILINE)  # torch writes it before each line
    found = re.findall(
        r"^Traceback \(most recent call last\):\n(?:.*\n)*?(?=\S)(?!Traceback)(.+)$", plain, re.MULTILINE
    )
    if found:
        return f"{_truncate(found[-1])} ({how})", tail, time.time()
    return how, tail, time.time()


def with_description(failure: Failure, worker: Worker, remark: str) -> Failure:
    """Return the report of a failure with what the worker has left, and ``remark`` at the end of its message."""
    from hpcelastic.health.known_causes import is_echo  # here, because most agents have no failure

    message, traceback, when = describe_failure(failure.exit_code, worker.error_file, worker.log)
    return replace(failure, message=message + remark, traceback=traceback, timestamp=when, echo=is_echo(message))


def within(seconds: float, function: Callable[[], T], late: Callable[[T], None]) -> T | None:
    """Call ``function`` in a thread. Return its result, or None after ``seconds``; ``late`` is then called with it."""
    results: list[T] = []
    first = threading.Lock()  # acquired by the result or by the time-out, and never released

    def run() -> None:
        results.append(function())
        if not first.acquire(blocking=False):
            late(results[0])

    thread = threading.Thread(target=run, name="failure", daemon=True)
    thread.start()
    thread.join(seconds)
    return None if first.acquire(blocking=False) else results[0]


def _truncate(line: str) -> str:
    return line if len(line) <= _MAX_MESSAGE else line[: _MAX_MESSAGE - 1] + "…"


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


def failure_of(worker: Worker, round: int, exit_code: int, marks: MarkRing) -> Failure:
    """Return the report of the failure of a worker in ``round``, without its node and its message."""
    demand = marks.rollback(round)
    return Failure(
        round=round,
        node="",
        rank=worker.rank,
        local_rank=worker.local_rank,
        exit_code=exit_code,
        message="",
        timestamp=time.time(),
        step=marks.steps(round) or -1,
        rollback=None if demand is None else RollbackDemand(*demand),
    )


def end_of_worker(worker: Worker, round: int, exit_code: int, page: ControlPage | None = None) -> WorkerEnded:
    """Return the event of the end of a worker, with what it has left on the control ``page``."""
    usage = worker.process.usage
    ended = WorkerEnded(
        round=round,
        rank=worker.rank,
        exit_code=exit_code,
        peak_memory=usage.peak_memory if usage else None,
        cpu_seconds=usage.cpu_seconds if usage else None,
    )
    if page is None:
        return ended
    marks = page.marks(worker.local_rank)
    requested = page.acknowledges(worker.local_rank, round) or None
    ended, mark = replace(ended, step=marks.steps(round), requested=requested), marks.newest(round)
    if mark is None:
        return ended
    age = max(0.0, boottime() - mark.time / 1e9)
    return replace(ended, mark=mark.kind.name.lower(), mark_value=mark.value, mark_age=float(f"{age:.3f}"))
