"""Filesystems that a test mounts, and faults of a run's directory on them.

A disk is an image that is mounted in a separate mount namespace. Only processes that are started with `Disk.prefix` see
it. Once these processes and the test have ended, even by SIGKILL, no mount is left.
"""

import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Protocol

from tests.cli.shell import TIMEOUT, eventually
from tests.filesystems.anomalies import ALL, CHANGES, Fault
from tests.filesystems.mounts import FaultyMount, faulty_mounts, why_no_fuse

_PLAIN = "setpriv --bounding-set=-dac_override,-dac_read_search,-sys_resource"
"""Removes root's capabilities to bypass permissions and to use reserved space."""

_SIZE = 8 * 2**20
_INODES = 256


@cache
def why_unavailable() -> str | None:
    """Return None if disks can be mounted here, else the reason and the remedy."""
    if os.geteuid() != 0:
        return "mounting a disk needs root: run pytest as root"
    probe = subprocess.run(["unshare", "-m", "sh", "-c", "losetup -f && mkfs.ext4 -V"], capture_output=True, text=True)
    if probe.returncode:
        return f"no rights for mounts or loop devices ({probe.stderr.strip()}): in a container, run it privileged"
    return why_no_fuse()


class Site(Protocol):
    """A place for the directory of a run."""

    @property
    def root(self) -> Path:
        """The mount point."""

    @property
    def behind(self) -> Path:
        """The same directory for the test, independent of faults of `root`."""

    @property
    def seen(self) -> Path:
        """`root` for processes that are started with `prefix`."""

    @property
    def prefix(self) -> list[str]:
        """The beginning of the command lines of processes that see it."""


class Disk:
    """A separate disk, which can be filled, made read-only and unmounted."""

    def __init__(self, directory: Path) -> None:
        self._image = directory / "disk.img"
        self._behind = directory / "behind"
        """A second mount of the same disk for the test."""
        self.root = directory / "disk"
        for made in (self._behind, self.root):
            made.mkdir()
        hold = "setpriv --pdeathsig KILL unshare --mount --propagation private sleep infinity"
        self._holder = subprocess.Popen(hold.split())
        own = os.stat("/proc/self/ns/mnt").st_ino
        eventually(lambda: os.stat(f"/proc/{self._holder.pid}/ns/mnt").st_ino != own)
        with self._image.open("wb") as image:
            image.truncate(_SIZE)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-N", str(_INODES), str(self._image)], check=True)
        self._do("mount", "-o", "loop,nodelalloc", str(self._image), str(self._behind))
        self.mount()

    @property
    def prefix(self) -> list[str]:
        return [*self._enter(), *_PLAIN.split(), "env", f"--chdir={self.root.parent}"]

    @property
    def behind(self) -> Path:
        return self._seen(self._behind)

    @property
    def seen(self) -> Path:
        return self._seen(self.root)

    def mount(self) -> None:
        self._do("mount", "--bind", str(self._behind), str(self.root))

    def unmount(self) -> None:
        """Unmount the disk while it is used. Processes keep their open files, and the path is empty."""
        self._do("umount", "--lazy", str(self.root))

    def remount(self, option: str) -> None:
        """Mount again. With ``ro``, wait until no file is open for writing, as Linux requires."""
        deadline = time.monotonic() + TIMEOUT
        while self._try("mount", "-o", f"remount,{option}", str(self._behind)):
            assert time.monotonic() < deadline, f"could not remount {self._behind}"

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()

    def _enter(self) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt"]

    def _do(self, *command: str) -> None:
        subprocess.run([*self._enter(), *command], check=True)

    def _try(self, *command: str) -> int:
        return subprocess.run([*self._enter(), *command], stderr=subprocess.DEVNULL).returncode

    def _seen(self, path: Path) -> Path:
        return Path(f"/proc/{self._holder.pid}/root{path}")


class Share:
    """A network filesystem whose client can be made to fail and to hang."""

    def __init__(self, mount: FaultyMount, backing: Path) -> None:
        self.mount = mount
        self.root = self.seen = mount.client.directory
        self.behind = backing
        self.prefix = [*_PLAIN.split(), "env", f"--chdir={backing.parent}"]


@contextlib.contextmanager
def mounted_disk(directory: Path) -> Iterator[Disk]:
    made = Disk(directory)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def mounted_share(directory: Path) -> Iterator[Share]:
    backing = directory / "backing"
    backing.mkdir()
    with faulty_mounts(backing, count=1) as (mount,):
        yield Share(mount, backing)


@contextlib.contextmanager
def full(disk: Disk) -> Iterator[None]:
    """Keep the disk full: all freed space is used again, as by a program of another user."""
    filler = disk.behind / "filler"
    with _again_and_again(lambda: _fill(filler)):
        yield
    filler.unlink()


@contextlib.contextmanager
def without_inodes(disk: Disk) -> Iterator[None]:
    """Let no further file be created, although there is space."""
    fillers = disk.behind / "fillers"
    fillers.mkdir()
    with _again_and_again(lambda: _litter(fillers)):
        yield
    for filler in fillers.iterdir():
        filler.unlink()


@contextlib.contextmanager
def read_only(disk: Disk) -> Iterator[None]:
    disk.remount("ro")
    yield
    disk.remount("rw")


@contextlib.contextmanager
def unmounted(disk: Disk) -> Iterator[None]:
    disk.unmount()
    yield
    disk.mount()


@contextlib.contextmanager
def forbidden(disk: Disk) -> Iterator[None]:
    """Remove all permissions."""
    mode = disk.behind.stat().st_mode
    disk.behind.chmod(0)
    yield
    disk.behind.chmod(mode)


@contextlib.contextmanager
def over_quota(share: Share) -> Iterator[None]:
    """Let every change fail with the error of an exceeded quota."""
    share.mount.fail(Fault(CHANGES, error="EDQUOT"))
    yield
    share.mount.fail()


@contextlib.contextmanager
def failing(share: Share) -> Iterator[None]:
    """Let the server answer each call with an error."""
    share.mount.fail(Fault(ALL, error="EIO"))
    yield
    share.mount.fail()


@contextlib.contextmanager
def hung(share: Share) -> Iterator[None]:
    """Let the server answer no call."""
    share.mount.fail(Fault(ALL, hang=True))
    try:
        yield
    finally:
        share.mount.fail()


@contextlib.contextmanager
def _again_and_again(use_up: Callable[[], None]) -> Iterator[None]:
    """Call ``use_up`` now, and repeatedly until the end of the context."""
    use_up()
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(0.05):
            use_up()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _fill(filler: Path) -> None:
    """Write until no byte is free."""
    with filler.open("ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            with _until_none_is_left():
                while True:
                    file.write(b"x" * size)


def _litter(directory: Path) -> None:
    """Create files until no further file can be created."""
    with _until_none_is_left():
        for number in range(len(os.listdir(directory)), 10**6):
            (directory / f"{number}").touch()


@contextlib.contextmanager
def _until_none_is_left() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
