"""Which mount a path lies on: its type, source and options. Source of the format: proc_pid_mountinfo(5)."""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

_ESCAPE = re.compile(r"\\([0-7]{3})")

_OF_DISKS = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "fuseblk", "jfs", "reiserfs", "vfat", "xfs", "zfs"}
_OF_MACHINES = {"aufs", "hostfs", "overlay", "ramfs", "rootfs", "tmpfs"}

_OF_ONE_CLIENT = {"clientaddr", "addr", "mountaddr", "fd", "rw", "size", "nr_inodes"}
"""Options that differ between nodes that mount the same filesystem in the same way."""


@dataclass(frozen=True)
class Mount:
    """A mounted filesystem as the kernel describes it."""

    kind: str
    """The filesystem's type, such as ``nfs4`` or ``fuse.glusterfs``."""

    source: str
    """What is mounted: a device, ``server:/export``."""

    point: str
    options: tuple[str, ...] = ()

    @property
    def local(self) -> bool:
        """True for a type that only the machine that mounts it can see."""
        return self.kind in _OF_DISKS | _OF_MACHINES

    def option(self, name: str) -> str | None:
        """The value of an option, empty for a flag; None if the mount does not have it."""
        found = (option.partition("=") for option in self.options)
        return next((value for key, _, value in found if key == name), None)

    def same_as(self, other: "Mount") -> bool:
        """Whether both are the same filesystem, mounted in the same way, perhaps by different nodes."""
        return (self.kind, self.source, self._shared) == (other.kind, other.source, other._shared)

    @property
    def _shared(self) -> frozenset[str]:
        return frozenset(option for option in self.options if option.partition("=")[0] not in _OF_ONE_CLIENT)

    def __str__(self) -> str:
        return f"{self.kind} {self.source} ({','.join(self.options)})"


UNKNOWN = Mount("unknown", "", "/")
"""What is said of a path where the kernel tells nothing."""


def mount_of(path: Path) -> Mount:
    """The mount that ``path``, which must exist, lies on."""
    try:
        mounts = parse(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    except OSError:
        return UNKNOWN
    found = mounts.get(_mount_id(path))
    return found or containing(mounts, os.path.realpath(path))


def parse(text: str) -> dict[int, Mount]:
    """The mounts in the text of a ``mountinfo`` file, by the kernel's number for them; lines of no sense are left out.

    A line is ``id parent major:minor root point options [optional ...] - type source superoptions``.
    """
    mounts = {}
    for line in text.splitlines():
        own, dash, rest = line.partition(" - ")
        fields, (kind, source, options) = own.split(" "), [*rest.split(" "), "", "", ""][:3]
        if not dash or len(fields) < 6 or not fields[0].isdigit() or not kind:
            continue
        both = (*fields[5].split(","), *(_unescaped(option) for option in options.split(",")))
        unique = tuple(dict.fromkeys(option for option in both if option))
        mounts[int(fields[0])] = Mount(kind, _unescaped(source), _unescaped(fields[4]), unique)
    return mounts


def containing(mounts: dict[int, Mount], path: str) -> Mount:
    """The mount with the longest mount point above ``path``; of several on one point, the last covers the others."""
    above = [mount for mount in mounts.values() if f"{path}/".startswith(mount.point.rstrip("/") + "/")]
    longest = max((len(mount.point) for mount in above), default=0)
    return next((mount for mount in reversed(above) if len(mount.point) == longest), UNKNOWN)


def _mount_id(path: Path) -> int:
    """The kernel's number of the mount, which no symbolic link, bind mount or mount on top can disguise; 0 if unknown.

    O_PATH: nothing is opened on the filesystem itself, which might hang.
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
    """The kernel writes space, tab, newline and backslash as octal numbers, byte by byte."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
