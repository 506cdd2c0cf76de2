"""The named pipe through which processes set timers, in the format of torch's ``FileTimerClient``.

A request is one line of JSON. Source: torch/distributed/elastic/timer/file_based_local_timer.py.
"""

import contextlib
import errno
import json
import math
import os
import select
import signal
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.agent.environment import TIMER_FILE
from hpcelastic.errors import HpcElasticError
from hpcelastic.protocol.codec import decode

_MAX_LINE = select.PIPE_BUF + 1
"""Bytes of the longest request, with the end of the line. The client sends no longer one."""

_MAX_READ = 65536
_ENABLE_VARIABLE = "TORCHELASTIC_ENABLE_FILE_TIMER"
"""The environment variable with which torch's agent serves timers if it is 1."""


@dataclass(frozen=True)
class TimerRequest:
    """A request to set a timer, or to release it."""

    pid: int
    """Process id of the process that sets the timer."""

    scope_id: str
    """Name of the timer within its process."""

    expiration_time: float
    """Seconds since the epoch. A negative number releases the timer."""

    signal: int
    """The signal to send when the timer expires. A number below 1 asks for no signal."""

    def __post_init__(self) -> None:
        if math.isnan(self.expiration_time):
            raise ValueError("expiration_time is not a number")
        if self.signal > 0:
            signal.Signals(self.signal)  # raises ValueError if there is no such signal


def parse_request(line: bytes) -> TimerRequest:
    """Return the request in a line. Raises ValueError if it has none."""
    try:
        return decode(TimerRequest, json.loads(line))
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


class TimerPipe:
    """The end of a named pipe that the agent reads. Only processes of the same user can write to the pipe."""

    def __init__(self, path: Path, directory: Path | None = None) -> None:
        """Create the pipe at ``path``. ``directory`` is removed with the pipe. Raises OSError."""
        os.mkfifo(path, 0o600)
        self.path, self._directory = path, directory
        # With a descriptor for writing too, the pipe is never at its end, which would be readable for ever.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._pending = b""

    @classmethod
    def create(cls, wanted: str | None, report: Callable[[str], None]) -> "TimerPipe":
        """Create a pipe at the path ``wanted``. If there is none, or it is not free, use a new private directory.

        Raises OSError.
        """
        if wanted:
            path = Path(wanted).absolute()
            try:
                _remove_unused_pipe(path)
                return cls(path)
            except OSError as error:
                report(f"the timers cannot use {path} ({error.strerror}); their pipe is in a temporary directory")
        directory = Path(tempfile.mkdtemp(prefix="hpcelastic-timers-"))
        return cls(directory / "pipe", directory)

    def fileno(self) -> int:
        """Readable when there are requests."""
        return self._fd

    def read(self) -> list[bytes]:
        """Return the lines that have been completed since the last call."""
        with contextlib.suppress(BlockingIOError):
            self._pending += os.read(self._fd, _MAX_READ)
        *lines, rest = self._pending.split(b"\n")
        self._pending = rest[:_MAX_LINE]  # the cut line is no request either
        return lines

    def close(self) -> None:
        """Remove the pipe."""
        os.close(self._fd)
        with contextlib.suppress(OSError):
            self.path.unlink()
            if self._directory is not None:
                self._directory.rmdir()


def _remove_unused_pipe(path: Path) -> None:
    """Remove a named pipe that no process reads: an agent that was killed has left it."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISFIFO(path.lstat().st_mode):
            return
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno == errno.ENXIO:
                path.unlink()


def open_pipe(
    environ: Mapping[str, str], *, wanted: bool, node: str, report: Callable[[str], None]
) -> TimerPipe | None:
    """Create the pipe if the settings or torch's variable ask for it; otherwise return None."""
    if not wanted and environ.get(_ENABLE_VARIABLE) != "1":
        return None
    try:
        return TimerPipe.create(environ.get(TIMER_FILE), report)
    except OSError as error:
        raise HpcElasticError(f"{node}: cannot create the pipe of the timers: {error}") from error
