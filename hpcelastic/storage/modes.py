"""The modes of the files of a run: for the owner alone, or readable by the group of a shared run.

The directory of a shared run, and each directory in it, has a mode that no other program sets (`SHARED`). So the mode
of a new file follows from that of its directory.
"""

import functools
import os
import stat
from pathlib import Path

SHARED = stat.S_ISGID | stat.S_ISVTX | 0o750
"""The mode of a directory of a shared run. What is created in it belongs to the same group. The sticky bit has no
effect where the group may not write. It marks the directory."""

MAILBOX = SHARED | stat.S_IWGRP
"""The mode of the directory of a shared run in which the group may create files, but not remove those of others."""

_FILE, _SHARED_FILE = 0o600, 0o640


def create(path: Path, flags: int, *, private: bool = False) -> int:
    """Create the file ``path``, and return its descriptor. A ``private`` file is for the owner alone in any run."""
    shared = not private and is_shared(path.parent)
    fd = os.open(path, flags | os.O_CREAT, _FILE)
    if shared:
        try:
            share(fd)
        except BaseException:
            os.close(fd)
            raise
    return fd


def share(fd: int) -> None:
    """Let the group read a file of a shared run."""
    os.fchmod(fd, _SHARED_FILE)


def make_directory(path: Path) -> None:
    """Create the directory ``path``. Raises FileExistsError."""
    if not is_shared(path.parent):
        os.mkdir(path, 0o700)
        return
    os.mkdir(path, stat.S_ISVTX | 0o750)  # it inherits the group, and S_ISGID
    if _mode(path) != SHARED:  # the umask forbids the group to read
        os.chmod(path, SHARED)


@functools.lru_cache(maxsize=1024)
def is_shared(directory: Path) -> bool:
    """Return whether ``directory`` belongs to a shared run.

    It has no permissions of the group yet if another process is about to set its mode.
    """
    return _mode(directory) in (SHARED, MAILBOX, SHARED & ~stat.S_IRWXG)


def _mode(path: Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)
