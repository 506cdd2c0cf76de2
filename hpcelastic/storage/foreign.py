"""Files of other users, which are read without trust in them, and the names of users."""

import getpass
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ForeignFile:
    """A file that another user may have written."""

    uid: int
    """Its owner, which the filesystem vouches for."""

    changed: float
    """The time of its last change (ctime) in seconds since the epoch, which no user can set."""

    data: bytes | None
    """Its content; None if it is too long."""


def read_foreign(path: Path, max_size: int) -> ForeignFile | None:
    """Return the file ``path`` with at most ``max_size`` bytes of content; None if it is no regular file.

    A symbolic link is not followed, and a pipe does not block. Raises OSError.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        return None
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):  # it was replaced since then
            return None
        data = os.read(fd, max_size) if status.st_size <= max_size else None
        return ForeignFile(status.st_uid, status.st_ctime, data)
    finally:
        os.close(fd)


def owner_of(path: Path) -> str:
    """Return the name of the owner of a file. Raises OSError."""
    return user_name(path.stat().st_uid)


def user_name(uid: int) -> str:
    """Return the name of a user, or a text with the number of one that has no name, as in some containers."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def this_user() -> str:
    """Return the name of this user, or a text with the number of one that has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # as in some containers
        return user_name(os.geteuid())
