"""The table of filesystem errors: how often a failed call is repeated, and what the user is advised to do.

A repeated call must be idempotent. A call that publishes may have succeeded although it failed, because the reply can
be lost. Before such a call is repeated, its caller checks what the earlier attempt has left.
"""

import contextlib
import errno
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hpcelastic.errors import StoreError

Result = TypeVar("Result")

_CHECK_MOUNT = "check that the shared filesystem is mounted and answers on this node"
_USE_OWN_DIRECTORY = "access is denied: use a directory that belongs to you on every node"
_RAISE_FILE_LIMIT = "too many files are open: raise the limit (ulimit -n)"


@dataclass(frozen=True)
class ErrorRule:
    """The rule for one error: ``tries`` calls in all, ``pause`` seconds before the second call, doubled each time."""

    advice: str
    tries: int = 1
    pause: float = 0.02


_DEFAULT_RULE = ErrorRule(_CHECK_MOUNT)
RULES = {
    # Transient errors: the next call looks the name up again, or the server is back.
    errno.ESTALE: ErrorRule(_CHECK_MOUNT, tries=5),
    errno.EINTR: ErrorRule(_CHECK_MOUNT, tries=5),
    errno.EAGAIN: ErrorRule(_CHECK_MOUNT, tries=5),
    errno.EBUSY: ErrorRule(_CHECK_MOUNT, tries=5),
    errno.EIO: ErrorRule(_CHECK_MOUNT, tries=3, pause=0.05),
    errno.EREMOTEIO: ErrorRule(_CHECK_MOUNT, tries=3, pause=0.05),
    errno.ETIMEDOUT: ErrorRule(_CHECK_MOUNT, tries=2),  # on a soft mount the call has already taken a minute
    errno.ENFILE: ErrorRule(_RAISE_FILE_LIMIT, tries=3, pause=0.1),
    errno.ENOMEM: ErrorRule("this node is short of memory: free some", tries=3, pause=0.1),
    # Errors that only the user can fix.
    errno.ENOSPC: ErrorRule("the filesystem is full: free some space"),
    errno.EDQUOT: ErrorRule("the disk quota is used up: free some space"),
    errno.EFBIG: ErrorRule("raise the limit on file sizes (ulimit -f), or use another filesystem"),
    errno.EACCES: ErrorRule(_USE_OWN_DIRECTORY),
    errno.EPERM: ErrorRule(_USE_OWN_DIRECTORY),
    errno.EROFS: ErrorRule("the filesystem is mounted read-only: mount it for writing again, or use another directory"),
    errno.ENOTDIR: ErrorRule("a part of the path is a file: use another directory"),
    errno.EEXIST: ErrorRule("a file is in the way: use another directory"),
    errno.ENAMETOOLONG: ErrorRule("the path is too long for its filesystem: use a directory with a shorter one"),
    errno.EXDEV: ErrorRule("a part of the directory is on another filesystem: use one that is whole"),
    errno.ELOOP: ErrorRule("symbolic links lead in a circle: use another directory"),
    errno.EMFILE: ErrorRule(_RAISE_FILE_LIMIT),
    errno.ENOENT: ErrorRule("if it existed, it was removed or unmounted: " + _CHECK_MOUNT),
    errno.ENOTCONN: ErrorRule("the filesystem's client on this node has died: " + _CHECK_MOUNT),
    errno.ESHUTDOWN: ErrorRule("the filesystem's client on this node has died: " + _CHECK_MOUNT),
    errno.ENODEV: ErrorRule("the filesystem has been unmounted: " + _CHECK_MOUNT),
    # Errors of a missing feature. Callers that can work without the feature catch them.
    errno.ENOLCK: ErrorRule("the filesystem's lock service does not answer: " + _CHECK_MOUNT),
    errno.ENOSYS: ErrorRule("the filesystem can't do that: use another one for the run's directory"),
    errno.EOPNOTSUPP: ErrorRule("the filesystem can't do that: use another one for the run's directory"),
}


def rule_for(error: OSError) -> ErrorRule:
    return RULES.get(error.errno or 0, _DEFAULT_RULE)


def advice(code: int | None) -> str:
    """Return the advice for error number ``code``: its cause if that is not obvious, and what to do."""
    return RULES.get(code or 0, _DEFAULT_RULE).advice


def may_have_succeeded(error: OSError) -> bool:
    """Return True if the call may have taken effect although it failed with ``error``."""
    return rule_for(error).tries > 1 or error.errno in (errno.ENOENT, errno.EEXIST)


def retry(call: Callable[[], Result], final: Collection[int] = ()) -> Result:
    """Call ``call``, repeat it by the rule of its error, and return its result. It must be idempotent.

    Errors in ``final`` are raised at once.
    """
    failed = 0
    while True:
        try:
            return call()
        except OSError as error:
            failed += 1
            if failed >= rule_for(error).tries or error.errno in final:
                raise
            pause = rule_for(error).pause * 2 ** (failed - 1)
        time.sleep(pause)


def poll_delays(timeout: float) -> Iterator[float]:
    """Yield the delays between polls, in seconds. They grow, and end when their sum exceeds ``timeout``."""
    pause, waited = 0.01, 0.0
    while waited <= timeout:
        yield pause
        waited += pause
        pause = min(pause * 2, 0.5)


@contextlib.contextmanager
def as_store_error(path: Path) -> Iterator[None]:
    """Convert an OSError into a StoreError that names the file, the error and what to do."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}; {advice(error.errno)}") from error
