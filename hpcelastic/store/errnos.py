"""What each error of a shared filesystem means: how often the call is repeated, and what a person is told to do.

A call that is repeated must be idempotent. One that publishes may have succeeded although it failed, for the reply can
be lost: whoever repeats it looks first at what it has left.
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

_MOUNT = "check that the shared filesystem is mounted and answers on this node"
_OWNER = "access is denied: use a directory that belongs to you on every node"
_FILES = "too many files are open: raise the limit (ulimit -n)"


@dataclass(frozen=True)
class Rule:
    """What is done about an error: ``tries`` calls in all, ``pause`` seconds before the second, then twice as long."""

    advice: str
    tries: int = 1
    pause: float = 0.02


_OTHER = Rule(_MOUNT)
RULES = {
    # What passes: the next call looks the name up anew, or finds the server back.
    errno.ESTALE: Rule(_MOUNT, tries=5),
    errno.EINTR: Rule(_MOUNT, tries=5),
    errno.EAGAIN: Rule(_MOUNT, tries=5),
    errno.EBUSY: Rule(_MOUNT, tries=5),
    errno.EIO: Rule(_MOUNT, tries=3, pause=0.05),
    errno.EREMOTEIO: Rule(_MOUNT, tries=3, pause=0.05),
    errno.ETIMEDOUT: Rule(_MOUNT, tries=2),  # one that comes from a soft mount has taken a minute already
    errno.ENFILE: Rule(_FILES, tries=3, pause=0.1),
    errno.ENOMEM: Rule("this node is short of memory: free some", tries=3, pause=0.1),
    # What only a person can change.
    errno.ENOSPC: Rule("the filesystem is full: free some space"),
    errno.EDQUOT: Rule("the disk quota is used up: free some space"),
    errno.EFBIG: Rule("raise the limit on file sizes (ulimit -f), or use another filesystem"),
    errno.EACCES: Rule(_OWNER),
    errno.EPERM: Rule(_OWNER),
    errno.EROFS: Rule("the filesystem is mounted read-only: mount it for writing again, or use another directory"),
    errno.ENOTDIR: Rule("a part of the path is a file: use another directory"),
    errno.EEXIST: Rule("a file is in the way: use another directory"),
    errno.ENAMETOOLONG: Rule("the path is too long for its filesystem: use a directory with a shorter one"),
    errno.EXDEV: Rule("a part of the directory is on another filesystem: use one that is whole"),
    errno.ELOOP: Rule("symbolic links lead in a circle: use another directory"),
    errno.EMFILE: Rule(_FILES),
    errno.ENOENT: Rule("if it was there, somebody has removed it, or it has been unmounted: " + _MOUNT),
    errno.ENOTCONN: Rule("the filesystem's client on this node has died: " + _MOUNT),
    errno.ESHUTDOWN: Rule("the filesystem's client on this node has died: " + _MOUNT),
    errno.ENODEV: Rule("the filesystem has been unmounted: " + _MOUNT),
    # What a feature is missing by. Where we can do without it we do, and nobody hears of these.
    errno.ENOLCK: Rule("the filesystem's lock service does not answer: " + _MOUNT),
    errno.ENOSYS: Rule("the filesystem can't do that: use another one for the run's directory"),
    errno.EOPNOTSUPP: Rule("the filesystem can't do that: use another one for the run's directory"),
}


def rule(error: OSError) -> Rule:
    return RULES.get(error.errno or 0, _OTHER)


def advice(code: int | None) -> str:
    """What to tell a person about the error number ``code``: its cause, if that isn't plain, and what to do."""
    return RULES.get(code or 0, _OTHER).advice


def doubtful(error: OSError) -> bool:
    """True if the call may have taken effect although it failed with ``error``."""
    return rule(error).tries > 1 or error.errno in (errno.ENOENT, errno.EEXIST)


def repeated(call: Callable[[], Result], final: Collection[int] = ()) -> Result:
    """``call()``, again as its error's rule says; errors in ``final`` are raised at once. It must be idempotent."""
    failed = 0
    while True:
        try:
            return call()
        except OSError as error:
            failed += 1
            if failed >= rule(error).tries or error.errno in final:
                raise
            pause = rule(error).pause * 2 ** (failed - 1)
        time.sleep(pause)


def pauses(patience: float) -> Iterator[float]:
    """Seconds to wait between looks at what should be there, growing, until they come to ``patience``."""
    pause, waited = 0.01, 0.0
    while waited <= patience:
        yield pause
        waited += pause
        pause = min(pause * 2, 0.5)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an OSError into a StoreError that says which file, what happened, and what to do."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}; {advice(error.errno)}") from error
