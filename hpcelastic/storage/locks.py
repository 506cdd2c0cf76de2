"""The lock of a register. It reduces contention; correctness does not depend on it.

The lock is ``flock`` on a file. A client that hangs while it holds the lock may hold it forever, and on many mounts
locks do not exclude other nodes, or are missing. Therefore the wait for the lock is bounded, and the caller continues
without it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import filelock

LOCK_TIMEOUT = 1.0
"""Seconds to wait for the lock, if nothing else is said, before the caller continues without it."""

_POLL_INTERVAL = 0.01
_TRANSIENT_ERRORS = {
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
"""Errors after which the next attempt may succeed. Others (no lock service, no locks on this mount) are final."""


class BoundedLock:
    """A lock in ``directory`` with a bounded wait. The kernel releases it when its holder ends.

    ``timeout`` is the time in seconds after which the caller continues without the lock.
    """

    def __init__(self, directory: Path, timeout: float = LOCK_TIMEOUT) -> None:
        self._directory, self._timeout = directory, timeout
        self._supported = True
        """False after the first error that shows that the mount has no locks."""

        self._holder_suspected = False

    @contextlib.contextmanager
    def hold(self) -> Iterator[bool]:
        """Hold the lock during the block if it is acquired in time; yield whether it is held."""
        lock = self._acquire()
        try:
            yield lock is not None
        finally:
            if lock is not None:
                # The work under the lock is done, so an error of the release does not matter.
                with contextlib.suppress(Exception):
                    lock.release()

    def _acquire(self) -> filelock.BaseFileLock | None:
        # filelock would create a missing directory with the mode of the umask, even on an unmounted mount point.
        if not self._supported or not os.path.isdir(self._directory):
            return None
        try:
            lock = self._lock()
            # After one time-out the holder may hang. It must not delay every commit.
            lock.acquire(timeout=0.0 if self._holder_suspected else self._timeout, poll_interval=_POLL_INTERVAL)
        except TimeoutError:
            self._holder_suspected = True
            return None
        except (OSError, NotImplementedError, ImportError) as error:  # the environment may have been removed
            if getattr(error, "errno", None) not in _TRANSIENT_ERRORS:
                self._supported = False
            return None
        self._holder_suspected = False
        return lock

    def _lock(self) -> filelock.BaseFileLock:
        import filelock  # here: the import takes a tenth of an agent's start, and most agents never lock

        return filelock.FileLock(self._directory / "lock", mode=0o600, fallback_to_soft=False)
