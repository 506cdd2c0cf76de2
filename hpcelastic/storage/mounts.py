"""The mount of a path: its type, source and options. Source of the format: proc_pid_mountinfo(5)."""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")

_DISK_TYPES = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "fuseblk", "jfs", "reiserfs", "vfat", "xfs", "zfs"}
_LOCAL_TYPES = {"aufs", "hostfs", "overlay", "ramfs", "rootfs", "tmpfs"}

_COHERENT_TYPES = {"gpfs", "lustre"}
"""Types whose clients give back what they have cached of a directory before another client changes it.

Sources: Lustre Operations Manual, "Lustre Distributed Lock Manager"; IBM Storage Scale, "GPFS token management".
"""

_CLIENT_OPTIONS = {"clientaddr", "addr", "mountaddr", "fd", "rw", "size", "nr_inodes"}
"""Options that differ between nodes that mount the same filesystem in the same way."""


@dataclass(frozen=True)
class Mount:
    """A mounted filesystem, as described by the kernel."""

    kind: str
    """The filesystem's type, such as ``nfs4`` or ``fuse.glusterfs``."""

    source: str
    """The mounted device or export, such as ``server:/export``."""

    point: str
    options: tuple[str, ...] = ()

    @property
    def local(self) -> bool:
        """True for a type that only the mounting machine can see."""
        return self.kind in _DISK_TYPES | _LOCAL_TYPES

    @property
    def coherent(self) -> bool:
        """True for a type with which a listing shows all changes that were made before it."""
        return self.kind in _COHERENT_TYPES

    def option(self, name: str) -> str | None:
        """Return the value of an option, "" for a flag; None if the mount does not have the option."""
        found = (option.partition("=") for option in self.options)
        return next((value for key, _, value in found if key == name), None)

    def same_as(self, other: "Mount") -> bool:
        """Return True if both are the same filesystem with the same options, possibly on different nodes."""
        return (self.kind, self.source, self._shared) == (other.kind, other.source, other._shared)

    @property
    def _shared(self) -> frozenset[str]:
        return frozenset(option for option in self.options if option.partition("=")[0] not in _CLIENT_OPTIONS)

    def __str__(self) -> str:
        return f"{self.kind} {self.source} ({','.join(self.options)})"


UNKNOWN = Mount("unknown", "", "/")
"""The mount of a path that the kernel does not describe."""


def mount_of(path: Path) -> Mount:
    """Return the mount of ``path``, which must exist."""
    try:
        mounts = parse(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    except OSError:
        return UNKNOWN
    found = mounts.get(_mount_id(path))
    return found or containing(mounts, os.path.realpath(path))


def parse(text: str) -> dict[int, Mount]:
    """Parse the text of a ``mountinfo`` file into mounts by the kernel's mount id. Malformed lines are skipped.

    A line is ``id parent major:minor root point options [optional ...] - type source superoptions``.
    """
    mounts = {}
    for line in text.splitlines():
        first_part, separator, second_part = line.partition(" - ")
        fields, (kind, source, options) = first_part.split(" "), [*second_part.split(" "), "", "", ""][:3]
        if not separator or len(fields) < 6 or not fields[0].isdigit() or not kind:
            continue
        all_options = (*fields[5].split(","), *(_unescaped(option) for option in options.split(",")))
        unique = tuple(dict.fromkeys(option for option in all_options if option))
        mounts[int(fields[0])] = Mount(kind, _unescaped(source), _unescaped(fields[4]), unique)
    return mounts


def containing(mounts: dict[int, Mount], path: str) -> Mount:
    """Return the mount with the longest mount point above ``path``; of several on one point, the last one."""
    above = [mount for mount in mounts.values() if f"{path}/".startswith(mount.point.rstrip("/") + "/")]
    longest = max((len(mount.point) for mount in above), default=0)
    return next((mount for mount in reversed(above) if len(mount.point) == longest), UNKNOWN)


def _mount_id(path: Path) -> int:
    """Return the kernel's mount id, which is right also under symbolic links and bind mounts; 0 if unknown.

    The path is opened with O_PATH, which opens nothing on the filesystem itself and so can't hang there.
    """
    with contextlib.suppress(OSError, ValueError, StopIteration):
        fd = os.open(path, os.O_PATH)
        try:
            lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
        finally:
            os.close(fd)
        return int(next(line for line in lines if line.startswith("mnt_id:")).split()[1])
    return 0


def _unescaped(text: str) -> str:
    """Decode space, tab, newline and backslash, which the kernel writes as octal numbers, byte by byte."""
    return _OCTAL_ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
