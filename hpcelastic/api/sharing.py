"""Runs that a group of users may see and change (``run.group``)."""

import contextlib
import grp
import os
import stat
from pathlib import Path

from hpcelastic.errors import ConfigError
from hpcelastic.storage import modes
from hpcelastic.storage.foreign import owner_of, user_name
from hpcelastic.storage.mailbox import Mailbox
from hpcelastic.storage.paths import RunPaths


def group_id(name: str) -> int:
    """Return the number of a group. Raises ConfigError if there is none, or this user is not in it."""
    try:
        gid = grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"run.group is {name!r}, but there is no such group; `id` lists yours") from None
    if os.geteuid() != 0 and gid not in (os.getegid(), *os.getgroups()):
        raise ConfigError(f"run.group is {name!r}, but you are not in this group; `id` lists yours")
    return gid


def share(paths: RunPaths, group: str) -> None:
    """Share the empty directory of a run with a group. Raises ConfigError, OSError."""
    os.chown(paths.root, -1, group_id(group))
    os.chmod(paths.root, modes.SHARED)
    if not modes.is_shared(paths.root):
        raise ConfigError(f"{paths.root}: the filesystem does not keep the mode of a run with run.group; leave it out")
    Mailbox(paths).create()


def group_of(paths: RunPaths) -> str | None:
    """Return the group with which a run is shared; None if it is not. Raises OSError."""
    return paths.root.group() if modes.is_shared(paths.root) else None


def is_ours(paths: RunPaths) -> bool:
    """Return whether the run belongs to this user, or this user is root. Raises OSError."""
    return os.geteuid() in (0, paths.root.stat().st_uid)


def require_submitter(paths: RunPaths) -> None:
    """Raise ConfigError if a job that this user submits would not run as the owner of the run. Raises OSError."""
    if os.geteuid() != paths.root.stat().st_uid:
        name = owner_of(paths.root)
        raise ConfigError(
            f"{paths.root.name}: it belongs to {name}, and the new job would run as {user_name(os.geteuid())}; "
            f"repeat this as {name}"
        )


def require_owner(paths: RunPaths, action: str) -> None:
    """Raise ConfigError if the run belongs to another user."""
    if not is_ours(paths):
        raise ConfigError(f"{paths.root.name}: only its owner, {owner_of(paths.root)}, may {action}")


def check_group(paths: RunPaths, group: str) -> None:
    """Raise ConfigError if there is no such group, this user is not in it, or it cannot enter the directory of runs."""
    gid = group_id(group)
    for parent in paths.root.parents:
        if parent.exists() and not _enters(gid, parent):
            raise ConfigError(
                f"run.group is {group!r}, but this group cannot enter {parent}, whose mode is "
                f"{stat.S_IMODE(parent.stat().st_mode):o}; set run.directory to a directory of the group, or use chmod"
            )


def _enters(gid: int, directory: Path) -> bool:
    """Return whether a group may enter a directory, as far as this is known: an access control list may allow it."""
    status, attributes = directory.stat(), list[str]()
    with contextlib.suppress(OSError):  # a filesystem without them
        attributes = os.listxattr(directory)
    of_group = status.st_gid == gid or any("acl" in name for name in attributes)
    return bool(status.st_mode & stat.S_IXOTH or (of_group and status.st_mode & stat.S_IXGRP))
