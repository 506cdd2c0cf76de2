"""A filesystem that shows a directory of this machine with anomalies: ``faulty BACKING MOUNTPOINT ANOMALIES LOCKS``.

Each mount is its own process, so several mounts of one directory are clients that share nothing but its files. Stale
names and attributes come from the kernel's caches, as on a network filesystem. ``ANOMALIES`` is a file outside the
mount with the present anomalies. ``LOCKS`` is ``shared``, or ``local`` for locks that exclude within one mount only.

mfusepy (ctypes over libfuse 3, maintained) has all that is needed. C would be faster, but needs a compiler and headers.
After a rename over an open file, its readers get ESTALE when they read attributes, as with NFS.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import random
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import mfusepy

from tests.filesystems.anomalies import Anomalies, Fault, decode
from tests.filesystems.remembered import Remembered

_PACE = 0.01
"""Seconds between two checks of an operation that waits."""

_FLOCK = "hhqqi4x"
"""struct flock on 64-bit Linux."""

_PR_SET_PDEATHSIG = 1


def faulty(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Apply the faults before and after an operation."""
    name = operation.__name__

    @functools.wraps(operation)
    def acted(self: Passthrough, path: str | None, *args: Any) -> Any:
        where = self.path_of(path, args)
        self.act(name, where, done=False)
        result = operation(self, path, *args)
        try:
            self.act(name, where, done=True)
        except OSError:
            if name in ("open", "create"):
                os.close(result)
            raise
        return result

    return acted


class Passthrough(mfusepy.Operations):  # type: ignore[misc]  # mfusepy is untyped
    """The operations of FUSE, executed on the backing directory. Locks are left to the kernel of this mount."""

    use_ns: ClassVar[bool] = True
    flag_nopath: ClassVar[bool] = True
    flag_nullpath_ok: ClassVar[bool] = True

    def __init__(self, backing: str, anomalies: Path) -> None:
        self._backing = backing
        self._anomalies = anomalies
        self._read: tuple[tuple[int, int], Anomalies] = ((0, 0), Anomalies())
        self._config: Any = None
        self._paths: dict[int, str] = {}
        self._listings: dict[str, tuple[float, list[str]]] = {}
        self._remembered = Remembered()

    # Anomalies

    def init_with_config(self, _: Any, config: Any) -> None:
        self._config = config
        self.anomalies()

    def anomalies(self) -> Anomalies:
        """The present anomalies. libfuse reads its configuration with every reply, so caches change at once."""
        status = os.stat(self._anomalies)
        stamp = (status.st_ino, status.st_mtime_ns)
        if stamp != self._read[0]:
            anomalies = decode(self._anomalies.read_bytes())
            self._config.entry_timeout = anomalies.entries
            self._config.negative_timeout = anomalies.negative
            self._config.attr_timeout = anomalies.attributes
            self._config.kernel_cache = anomalies.pages
            self._config.direct_io = not anomalies.pages
            self._read = (stamp, anomalies)
        return self._read[1]

    def act(self, name: str, path: str, done: bool) -> None:
        """Hang, or raise an error, if a fault applies before or after an operation."""
        for fault in self.anomalies().faults:
            if fault.done == done and fault.meets(name, path) and random.random() < fault.probability:
                if fault.hang:
                    self._hang(fault)
                if fault.error:
                    raise OSError(fault.number, os.strerror(fault.number))

    def _hang(self, fault: Fault) -> None:
        while fault in self.anomalies().faults:
            _pause()

    def path_of(self, path: str | None, args: tuple[Any, ...]) -> str:
        if path is not None:
            return path
        return next((self._paths[arg] for arg in args if isinstance(arg, int) and arg in self._paths), "")

    def _at(self, path: str) -> str:
        return self._backing + path

    def _changed(self, *paths: str) -> None:
        for path in paths:
            self._listings.pop(os.path.dirname(path), None)
            self._remembered.renew(self._at(path), self.anomalies().data)

    # Attributes

    @faulty
    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, Any]:
        if path is None:
            status = os.fstat(fh or 0)
        else:
            status = self._remembered.use(self._at(path), self.anomalies().data, os.lstat, os.stat)
        times = {"st_atime": status.st_atime_ns, "st_mtime": status.st_mtime_ns, "st_ctime": status.st_ctime_ns}
        plain = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")
        return {**{name: getattr(status, name) for name in plain}, **times}

    @faulty
    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._at(path), mode)

    @faulty
    def chown(self, path: str, uid: int, gid: int) -> None:
        os.chown(self._at(path), uid, gid, follow_symlinks=False)

    @faulty
    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        os.utime(self._at(path), ns=times, follow_symlinks=False)

    @faulty
    def truncate(self, path: str | None, length: int, fh: int | None = None) -> None:
        os.truncate(self._at(path) if path is not None else fh or 0, length)

    @faulty
    def statfs(self, path: str) -> dict[str, int]:
        status = os.statvfs(self._at(path))
        names = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_namemax")
        return {name: getattr(status, name) for name in names}

    # Names

    @faulty
    def link(self, target: str, source: str) -> None:
        if self.anomalies().one_directory and os.path.dirname(source) != os.path.dirname(target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        os.link(self._at(source), self._at(target), follow_symlinks=False)
        self._changed(target)

    @faulty
    def symlink(self, target: str, source: str) -> None:
        os.symlink(source, self._at(target))
        self._changed(target)

    @faulty
    def readlink(self, path: str) -> str:
        return os.readlink(self._at(path))

    @faulty
    def rename(self, old: str, new: str) -> None:
        os.rename(self._at(old), self._at(new))
        self._changed(old, new)

    @faulty
    def unlink(self, path: str) -> None:
        os.unlink(self._at(path))
        self._changed(path)

    @faulty
    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self._at(path), mode)
        self._changed(path)

    @faulty
    def rmdir(self, path: str) -> None:
        os.rmdir(self._at(path))
        self._changed(path)

    @faulty
    def opendir(self, path: str) -> int:
        return self._opened(path, os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY))

    @faulty
    def readdir(self, path: str | None, fh: int) -> list[tuple[str, None, int]]:
        path = self.path_of(path, (fh,))
        taken, listing = self._listings.get(path, (0.0, []))
        now = time.monotonic()
        if now - taken > self.anomalies().listings or not taken:
            listing = [".", "..", *os.listdir(self._at(path))]
            self._listings[path] = (now, listing)
        return [(name, None, 0) for name in listing]  # a plain str would get the inode number 0, which readers skip

    @faulty
    def fsyncdir(self, path: str | None, datasync: int, fh: int) -> None:
        os.fsync(fh)

    def releasedir(self, path: str | None, fh: int) -> None:
        self.release(path, fh)

    # Files

    @faulty
    def open(self, path: str, flags: int) -> int:
        opened = functools.partial(os.open, flags=flags & ~os.O_NOFOLLOW)
        try:
            fd = self._remembered.use(self._at(path), self.anomalies().data, opened, opened)
        except FileNotFoundError as error:  # the kernel's name is stale; with this error it looks it up again
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from error
        return self._opened(path, fd)

    @faulty
    def create(self, path: str, mode: int, flags: int) -> int:
        opened = self._opened(path, os.open(self._at(path), flags | os.O_CREAT, mode))
        self._changed(path)
        return opened

    def _opened(self, path: str, fd: int) -> int:
        self._paths[fd] = path
        return fd

    @faulty
    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    @faulty
    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    @faulty
    def flush(self, path: str | None, fh: int) -> None:
        pass

    @faulty
    def fsync(self, path: str | None, datasync: int, fh: int) -> None:
        os.fsync(fh)

    def release(self, path: str | None, fh: int) -> None:
        self._paths.pop(fh, None)
        os.close(fh)


class SharedLocks(Passthrough):
    """Locks that exclude across all mounts, because they are taken on the backing file."""

    @faulty
    def flock(self, path: str | None, fh: int, operation: int) -> None:
        _patiently(lambda: fcntl.flock(fh, operation | fcntl.LOCK_NB), wait=not operation & fcntl.LOCK_NB)

    @faulty
    def lock(self, path: str | None, fh: int, command: int, lock: Any) -> None:
        """POSIX locks, as locks of the open file, because here all processes of a mount are one process."""
        wanted = lock.contents
        request = struct.pack(_FLOCK, wanted.l_type, wanted.l_whence, wanted.l_start, wanted.l_len, 0)
        if command == fcntl.F_GETLK:
            wanted.l_type = struct.unpack(_FLOCK, fcntl.fcntl(fh, fcntl.F_OFD_GETLK, request))[0]
            return
        _patiently(lambda: fcntl.fcntl(fh, fcntl.F_OFD_SETLK, request), wait=command == fcntl.F_SETLKW)


class _Fuse(mfusepy.FUSE):  # type: ignore[misc]  # mfusepy is untyped
    """FUSE without two wrong assumptions of mfusepy."""

    def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
        return -errno.EINVAL if flags else int(self.rename_fuse_2(old, new) or 0)

    def flock(self, path: bytes | None, info: Any, operation: int) -> int:
        return int(self.operations.flock(None, info.contents.fh, operation) or 0)


def _patiently(attempt: Callable[[], object], wait: bool) -> None:
    """Take a lock. While another process holds it, try again or raise EAGAIN."""
    while True:
        try:
            attempt()
            return
        except OSError as error:
            if not wait or error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        _pause()


def _pause() -> None:
    """Wait briefly. Raise EINTR if the caller was killed, because it could not end before the answer otherwise."""
    _, _, caller = mfusepy.fuse_get_context()
    if caller and _killed(caller):
        raise OSError(errno.EINTR, os.strerror(errno.EINTR))
    time.sleep(_PACE)


def _killed(thread: int) -> bool:
    try:
        lines = Path(f"/proc/{thread}/status").read_text().splitlines()
    except OSError:
        return True
    pending = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask & 1 << (signal.SIGKILL - 1) for mask in pending)


def main(backing: str, mountpoint: str, anomalies: str, locks: str) -> None:
    """Serve the mount until it is unmounted, or until the process that started this one ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    operations = {"shared": SharedLocks, "local": Passthrough}[locks](backing, Path(anomalies))
    options = {"use_ino": True, "hard_remove": True, "fsname": "hpcelastic-faulty", "max_threads": 64}
    _Fuse(operations, mountpoint, foreground=True, default_permissions=True, **options)


if __name__ == "__main__":
    main(*sys.argv[1:])
