"""Non-blocking standard output and error of an agent.

They may be a file in the run's directory. The agent must not stop when that file system is full or hangs.

A stream without a file descriptor, as in a notebook, is not replaced. Python has None for a stream that was closed
before the start of the process. It is replaced by the null device, because ``print`` takes None for standard output.
"""

import contextlib
import errno
import functools
import io
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, TextIO, cast

_MAX_PENDING = 2**20
"""Bytes that are kept while they cannot be written."""

_CHUNK = select.PIPE_BUF
"""Bytes of one write. A write of more waits until a slow reader has taken all of them."""

_RETRY_DELAY = 0.5
"""Seconds until a failed write is retried."""

_DRAIN_TIMEOUT = 2.0
"""Seconds that the last output of an agent may take to be written."""


class NonBlockingOutput(io.RawIOBase):
    """Writes to the file descriptor ``fd`` in its own thread, so that the caller gets no error.

    A failed write is retried. If the other end is closed, the output is dropped. The caller never waits, or with
    ``stall_timeout`` it waits for a slow reader, until no byte was written for so many seconds.
    """

    def __init__(self, fd: int, stall_timeout: float = 0.0) -> None:
        self._fd = fd
        self._stall_timeout = stall_timeout
        self._flows = True
        """Whether it is worth waiting for the reader: the last write has succeeded, and in time."""

        self._pending = bytearray()
        self._lost = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"output {fd}", daemon=True)
        self._thread.start()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def write(self, data: Any, /) -> int:
        given = bytes(data)
        with self._changed:
            if not self._wait_while_it_flows(lambda: len(self._pending) + len(given) <= _MAX_PENDING):
                self._lost += len(given)
                return len(given)
            if self._lost:
                self._pending += b"(%d bytes could not be written here)\n" % self._lost
                self._lost = 0
            self._pending += given
            self._changed.notify_all()
        return len(given)

    def drain(self, timeout: float) -> bool:
        """Wait for a slow reader, and then ``timeout`` seconds more. Return whether all is written."""
        with self._changed:
            self._wait_while_it_flows(lambda: not self._pending)
            return self._changed.wait_for(lambda: not self._pending, timeout)

    def stop(self, timeout: float = 0.0) -> None:
        """Let the thread end once all is written. Wait at most ``timeout`` seconds for its end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)

    def _wait_while_it_flows(self, condition: Callable[[], bool]) -> bool:
        """Return whether ``condition`` is true. Wait for it while the reader takes bytes, if there is a time-out."""
        while self._flows and not condition():
            if not self._changed.wait_for(functools.partial(self._moved_on, len(self._pending)), self._stall_timeout):
                self._flows = False
        return condition()

    def _moved_on(self, pending: int) -> bool:
        """Return whether something was written since so many bytes were pending, or nothing can be written now."""
        return len(self._pending) < pending or not self._flows

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                if not self._pending:
                    return
                chunk = bytes(self._pending[:_CHUNK])
            written = self._write(chunk)
            with self._changed:
                self._flows = written > 0
                del self._pending[:written]
                self._changed.notify_all()

    def _write(self, chunk: bytes) -> int:
        try:
            return os.write(self._fd, chunk)
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EBADF):
                return len(chunk)
            time.sleep(_RETRY_DELAY)
            return 0


def text_stream(output: NonBlockingOutput) -> TextIO:
    """Return a text stream that writes to ``output`` without a buffer."""
    return io.TextIOWrapper(cast(BinaryIO, output), encoding="utf-8", errors="backslashreplace", write_through=True)


_Replacement = tuple[TextIO, NonBlockingOutput | None]
"""The stream in place of another one, and its output if it has one."""


class _Redirection:
    """Replaces `sys.stdout` and `sys.stderr` while it has users. They may be in several threads, and overlap."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = sys.stdout, sys.stderr
        self._replacements: list[_Replacement] = []

    def begin(self, stall_timeout: float) -> None:
        """Replace the streams for the first user, whose ``stall_timeout`` counts."""
        with self._lock:
            if not self._users:
                self._before = sys.stdout, sys.stderr
                self._replacements = [_replacement(stream, stall_timeout) for stream in self._before]
                sys.stdout, sys.stderr = (stream for stream, _ in self._replacements)
            self._users += 1

    def end(self) -> None:
        """Restore the streams after the last user."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            sys.stdout, sys.stderr = self._before
            replacements, self._replacements = self._replacements, []
        _end(replacements)


_redirection = _Redirection()


@contextlib.contextmanager
def nonblocking_stdio(stall_timeout: float = 0.0) -> Iterator[None]:
    """Make standard output and error non-blocking within the block, so that a print never blocks or fails.

    With ``stall_timeout``, a print and the end of the block wait for a slow reader; see `NonBlockingOutput`.
    Blocks in several threads may overlap. The streams are restored at the end of the last one.
    """
    _redirection.begin(stall_timeout)
    try:
        yield
    finally:
        _redirection.end()


@contextlib.contextmanager
def nonblocking_stderr() -> Iterator[TextIO]:
    """Yield a stream to standard error on which a print never blocks or fails. `sys.stderr` itself is not changed."""
    replacement = _replacement(sys.stderr)
    try:
        yield replacement[0]
    finally:
        _end([replacement])


def _end(replacements: Sequence[_Replacement]) -> None:
    """Wait until all is written, for slow readers and then `_DRAIN_TIMEOUT` seconds, and let the threads end."""
    deadline = time.monotonic() + _DRAIN_TIMEOUT
    for output in (output for _, output in replacements if output is not None):
        output.drain(max(0.0, deadline - time.monotonic()))
        output.stop(max(0.0, deadline - time.monotonic()))


def _replacement(stream: TextIO | None, stall_timeout: float = 0.0) -> _Replacement:
    if stream is None:
        return _null(), None
    try:
        stream.flush()
        output = NonBlockingOutput(stream.fileno(), stall_timeout)
    except (OSError, ValueError):
        return stream, None
    return text_stream(output), output


@functools.cache
def _null() -> TextIO:
    """Return a stream to the null device. It stays open, because a thread may still write to it."""
    return open(os.devnull, "w")
