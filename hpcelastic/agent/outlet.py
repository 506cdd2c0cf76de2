"""An agent's own output, which may be a file in the run's directory.

That must not take the agent with it when it is full or hangs.
"""

import contextlib
import errno
import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, TextIO, cast

_KEPT = 2**20
"""Bytes that are kept while they can't be written."""

_AGAIN = 0.5
"""Seconds until what could not be written is tried again."""

_LAST_WORDS = 2.0
"""Seconds that the last words of an agent may take to be written."""


class Outlet(io.RawIOBase):
    """Writes to the file descriptor ``fd`` in a thread of its own, so that who prints never waits and never fails.

    What can't be written is tried again, and where nobody listens any more it is dropped.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pending = bytearray()
        self._lost = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"outlet {fd}", daemon=True)
        self._thread.start()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: Any, /) -> int:
        given = bytes(data)
        with self._changed:
            if len(self._pending) + len(given) > _KEPT:
                self._lost += len(given)
                return len(given)
            if self._lost:
                self._pending += b"(%d bytes could not be written here)\n" % self._lost
                self._lost = 0
            self._pending += given
            self._changed.notify_all()
        return len(given)

    def drain(self, timeout: float) -> bool:
        """Wait until all is written; False if that takes longer than ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout)

    def end(self, timeout: float = 0.0) -> None:
        """Let the thread end once all is written, and wait at most ``timeout`` seconds for its end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                if not self._pending:
                    return
                chunk = bytes(self._pending[:65536])
            written = self._write(chunk)
            with self._changed:
                del self._pending[:written]
                self._changed.notify_all()

    def _write(self, chunk: bytes) -> int:
        try:
            return os.write(self._fd, chunk)
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EBADF):
                return len(chunk)
            time.sleep(_AGAIN)
            return 0


def text_to(outlet: Outlet) -> TextIO:
    """A stream of text that goes to ``outlet`` at once."""
    return io.TextIOWrapper(cast(BinaryIO, outlet), encoding="utf-8", errors="backslashreplace", write_through=True)


@contextlib.contextmanager
def free_output() -> Iterator[None]:
    """Within the block nothing that this process prints can stop it, wherever its output goes."""
    before = sys.stdout, sys.stderr
    outlets = [outlet for outlet in map(_outlet, before) if outlet is not None]
    if len(outlets) == 2:
        sys.stdout, sys.stderr = map(text_to, outlets)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        deadline = time.monotonic() + _LAST_WORDS
        for outlet in outlets:
            outlet.drain(max(0.0, deadline - time.monotonic()))
            outlet.end(max(0.0, deadline - time.monotonic()))


def _outlet(stream: TextIO) -> Outlet | None:
    """In place of ``stream``; None if that leads to no file, as in a notebook."""
    try:
        stream.flush()
        return Outlet(stream.fileno())
    except (OSError, ValueError):
        return None
