"""The lock beside a register: it keeps contention cheap, and nothing rests on it.

A client that froze while it held a lock has been seen to hold it for ever, and many mounts grant locks that exclude
nobody, or none at all. So it is waited for a bounded time, and done without.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import filelock

LOCK_PATIENCE = 1.0
"""Seconds for which the lock is waited for before doing without it."""

_POLL = 0.01
_PASSING = {
    errno.EAGAIN,
    errno.EDQUOT,
    errno.EINTR,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOENT,
    errno.ENOMEM,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.ESTALE,
}
"""Errors that say nothing of the next try. Any other (no lock service, no locks on this mount) is final."""


class LockKind(str, Enum):
    """Which lock keeps contention cheap on a filesystem."""

    NATIVE = "native"
    """``flock``: the kernel's, gone with its holder."""

    SOFT = "soft"
    """A file that exists while the lock is held; what a dead holder on another node leaves stays."""

    NONE = "none"


class BoundedLock:
    """A lock in ``directory`` that is held if it can be had in time."""

    def __init__(self, directory: Path, kind: LockKind) -> None:
        self._directory = directory
        self._kind = kind
        self._suspect = False

    @contextlib.contextmanager
    def tried(self) -> Iterator[bool]:
        """Hold the lock if it can be had in time, and go on without it otherwise; yields whether it is held."""
        lock = self._acquired()
        try:
            yield lock is not None
        finally:
            if lock is not None:
                # What was done under the lock stays done, whatever the server says to the release.
                with contextlib.suppress(Exception):
                    lock.release()

    def _acquired(self) -> filelock.BaseFileLock | None:
        # filelock would make a missing directory, with the rights of the umask: on the mount point, if it has gone.
        if self._kind is LockKind.NONE or not os.path.isdir(self._directory):
            return None
        lock = self._lock()
        try:
            # A holder that kept us waiting in vain may be frozen: it must not cost a second at every commit.
            lock.acquire(timeout=0.0 if self._suspect else LOCK_PATIENCE, poll_interval=_POLL)
        except TimeoutError:
            self._suspect = True
            return None
        except (OSError, NotImplementedError) as error:
            if getattr(error, "errno", None) not in _PASSING:
                self._kind = LockKind.NONE
            return None
        self._suspect = False
        return lock

    def _lock(self) -> filelock.BaseFileLock:
        import filelock  # here: to load it takes a tenth of an agent's start, and most agents never lock

        # Two names, for the file that flock leaves behind would count as a soft lock that is held.
        if self._kind is LockKind.SOFT:
            return filelock.SoftFileLock(self._directory / "lock.soft", mode=0o600)
        return filelock.FileLock(self._directory / "lock", mode=0o600, fallback_to_soft=False)
