"""A shared filesystem with all its known faults: one `Server`, and a `Mount` for each client.

The server has the true content. A mount shows it late, loses replies, fails, hangs, and may end between two operations
or
in the middle of one. Operations have the names and the errors of module `os`.
"""

import errno
import os
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

from greenlet import GreenletExit

from tests.simulation.clock import Clock, Process

SLOW = 2.0
"""Seconds that a slow operation takes, which is rare."""

_BETWEEN_SLOW = 6.0

_AMID = 0.1
"""Seconds within which a listing and the renaming of a file can overlap."""

_MISSED = 0.05
"""Probability that such a listing misses the file or shows both names."""


@dataclass(frozen=True)
class Traits:
    """The properties of a filesystem. Times are in seconds; 0 means no delay."""

    staleness: float = 0.0
    """Delay until a reader sees the new content of a name."""

    listing: float = 0.0
    """Delay until another client sees a new name, or sees that a name was removed."""

    negative: float = 0.0
    """Time for which a client caches that a name is absent."""

    stale_handles: float = 0.0
    """Probability that a reader gets ESTALE instead of replaced content."""

    locks: str = "exclusive"
    """``exclusive``, ``local`` (to one client), ``never`` (all get it), ``absent`` (ENOLCK), ``kept`` (by a process
    that
    dies or freezes while it holds it)."""

    links: str = "hard"
    """``hard``, or ``symbolic`` on a filesystem without hard links."""

    pace: float = 0.12
    """Probability that an operation takes time."""


class Inode:
    """A file, a symbolic link to ``target``, or a removed file that is still open."""

    __slots__ = ("data", "links", "number", "synced", "target")

    def __init__(self, number: int, data: bytes = b"", target: str | None = None) -> None:
        self.number, self.data, self.target, self.synced, self.links = number, data, target, True, 0


_Change = tuple[float, Inode | None, Any]
"""The inodes of a name, with the time and the mount of each change."""


class Directory:
    """Names with their recent inodes, and the recent changes."""

    __slots__ = ("below", "gone", "names", "recent", "renamed")

    def __init__(self) -> None:
        self.names: dict[str, list[_Change]] = {}
        self.below: dict[str, None] = {}
        self.recent: deque[tuple[float, str, Any]] = deque(maxlen=512)
        self.renamed: deque[tuple[float, str, str, Any]] = deque(maxlen=16)
        """Files that were renamed. A listing at the same time may miss them."""

        self.gone: deque[tuple[float, str]] = deque()
        """Names that were removed, to be dropped after a time."""

    def forget(self, until: float) -> None:
        """Drop the names that were removed before ``until``."""
        while self.gone and self.gone[0][0] < until:
            name = self.gone.popleft()[1]
            changes = self.names.get(name)
            if changes and changes[-1][1] is None and changes[-1][0] < until:
                del self.names[name]


class Server:
    """The true content.

    ``published`` is called for every name, except those of drafts, that gets a content, and ``listed`` for every
    listing of a directory.
    """

    def __init__(
        self,
        clock: Clock,
        random: Random,
        traits: Traits,
        published: Callable[[str, bytes, "Mount"], None] = lambda *_: None,
        listed: Callable[[str, "Mount"], None] = lambda *_: None,
    ) -> None:
        self.clock, self.random, self.traits, self.published, self.listed = clock, random, traits, published, listed
        self._remembered = max(traits.staleness, traits.listing) + _AMID
        """Seconds for which a removed name can have an effect."""

        self.directories: dict[str, Directory] = {"/": Directory()}
        self.refuses = 0
        """The errno of every write for now; 0 for none."""

        self.locks: dict[str, Mount] = {}
        """The holder of the lock on each path."""

        self.inodes = 0
        self.mounts = 0

    def inode(self, data: bytes = b"", target: str | None = None) -> Inode:
        self.inodes += 1
        return Inode(self.inodes, data, target)

    def directory(self, path: str) -> Directory:
        found = self.directories.get(path)
        if found is None:
            raise _error(errno.ENOENT, path)
        return found

    def entry(self, path: str) -> Inode | None:
        """Return the true inode of a path."""
        directory, _, name = path.rpartition("/")
        changes = self.directory(directory or "/").names.get(name)
        return changes[-1][1] if changes else None

    def change(self, path: str, inode: Inode | None, by: "Mount") -> None:
        """Change the inode of a path."""
        parent, _, name = path.rpartition("/")
        directory = self.directory(parent or "/")
        changes = directory.names.get(name)
        if changes and changes[-1][1] is not None:
            changes[-1][1].links -= 1
        if inode is not None:
            inode.links += 1
        if name.startswith("."):  # a draft, which no other process opens
            if inode is None:
                directory.names.pop(name, None)
            else:
                directory.names[name] = [(self.clock.now, inode, by)]
            return
        if changes is None:
            directory.names[name] = changes = []
        if inode is None or not changes or changes[-1][1] is None:
            directory.recent.append((self.clock.now, name, by))
        changes.append((self.clock.now, inode, by))
        if inode is None:
            directory.gone.append((self.clock.now, name))
        directory.forget(self.clock.now - self._remembered)
        if len(changes) > 40:
            del changes[:20]
        if inode is not None:
            self.published(path, self.content(inode, parent), by)

    def content(self, inode: Inode, parent: str) -> bytes:
        if inode.target is None:
            return inode.data
        pointed = self.entry(inode.target if inode.target.startswith("/") else f"{parent}/{inode.target}")
        return pointed.data if pointed else b""


_LATE = {"link", "replace", "unlink", "mkdir", "symlink"}
_LOST = {"link": errno.EEXIST, "symlink": errno.EEXIST, "mkdir": errno.EEXIST, "create": errno.EEXIST}
_LOST |= {"replace": errno.ENOENT, "unlink": errno.ENOENT}
"""Errors that a client gets if it repeats an operation that has succeeded."""

_TRANSIENT = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)


class Mount:
    """The filesystem as the threads of ``process`` see it."""

    def __init__(self, server: Server, process: Process, name: str, node_clock: Callable[[], float]) -> None:
        self.server, self.process, self.name, self.node_clock = server, process, name, node_clock
        server.mounts += 1
        self.id = server.mounts
        self.clock = server.clock
        self._random = server.random
        self._draw = server.random.random
        self._traits = server.traits
        self._pace = server.traits.pace
        self._files: dict[int, tuple[Inode | None, str, bool]] = {}
        self._absent: dict[str, float] = {}
        self._slow_at = -_BETWEEN_SLOW
        self._unsynced: list[Inode] = []
        self.calm = False
        self.lock_poll = 0.1
        """Seconds between two attempts to get a lock, at least."""

        self._fd = 2
        self._armed: tuple[int, Callable[[], None]] | None = None
        self._error_rate = 0.0
        self._slowness = 1.0
        self.hangs = False
        self._hung: list[Callable[[], None]] = []

    # Faults of the mount

    def arm(self, operations: int, strike: Callable[[], None]) -> None:
        """Let ``strike`` happen in the middle of the given number of operations from now."""
        self._armed = operations, strike

    def disarm(self) -> None:
        self._armed = None

    def set_error_rate(self, likely: float) -> None:
        """Set the probability that an operation fails."""
        self._error_rate = likely

    def slow_down(self, factor: float) -> None:
        self._slowness = factor

    def hang(self) -> None:
        """Let no operation end until `release`."""
        self.hangs = True

    def release(self) -> None:
        self.hangs = False
        hung, self._hung = self._hung, []
        for wake in hung:
            wake()

    def copy_faults(self, other: "Mount") -> None:
        """Take over the faults of another process's mount on the same node."""
        self._error_rate, self._slowness, self.hangs = other._error_rate, other._slowness, other.hangs

    def die(self, *, power: bool = True) -> None:
        """End the process. If the power of the node fails too, data that was not made durable may be lost."""
        for inode in self._unsynced if power else ():
            if not inode.synced and self._draw() < 0.3:
                inode.data = inode.data[: self._random.randrange(len(inode.data) + 1)]
        if self._traits.locks != "kept":
            for path in [path for path, holder in self.server.locks.items() if holder is self]:
                del self.server.locks[path]

    # Every operation

    def _do(self, kind: str, apply: Callable[..., Any], *args: Any) -> Any:
        draw = self._draw()
        if self.calm:
            return apply(*args)
        if draw < self._pace or self._error_rate or self.hangs or self._armed or self.process.gone:
            return self._disturbed(draw, kind, apply, args)
        return apply(*args)

    def _disturbed(self, draw: float, kind: str, apply: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if self.process.gone:
            raise GreenletExit
        late = draw >= self._pace / 2
        if not late:
            self._wait(draw)
        struck = self._strikes()
        first = (struck or self.hangs) and self._draw() < 0.5
        if first:
            self._strike_or_hang(struck)
        failure = self._fails(kind, apply, args)
        result = apply(*args)
        if not first:
            self._strike_or_hang(struck)
        if late and draw < self._pace:
            self._wait(draw)
        if failure == "lost":
            raise _error(_LOST.get(kind, errno.EIO) if self._draw() < 0.5 else errno.EIO, *args[:1])
        return result

    def _wait(self, draw: float) -> None:
        """Wait for a reply. A slow one is rare, so that an undisturbed node keeps its lease."""
        now, share = self.clock.now, draw / self._pace
        seconds = 0.2 * (share * 7 % 1)
        if share * 13 % 1 < 0.03 and now - self._slow_at > _BETWEEN_SLOW:
            self._slow_at, seconds = now, SLOW
        self._pause(seconds * self._slowness)

    def _pause(self, seconds: float) -> None:
        if self.clock.task is not None:
            self.clock.task.pause(seconds)

    def _strikes(self) -> Callable[[], None] | None:
        if self._armed is None:
            return None
        left, strike = self._armed
        self._armed = (left - 1, strike) if left > 1 else None
        return strike if left <= 1 else None

    def _strike_or_hang(self, strike: Callable[[], None] | None) -> None:
        if strike is not None:
            strike()
            if self.process.gone:
                raise GreenletExit
            self._pause(0.0)
        while self.hangs and self.clock.task is not None:
            self._hung.append(self.clock.task.park(None))
            self.clock.task.wait()

    def _fails(self, kind: str, apply: Callable[..., Any], args: tuple[Any, ...]) -> str:
        """Fail with some probability: without effect, or with a late one. Return ``lost`` if only the reply is lost."""
        if not self._error_rate or self._draw() >= self._error_rate:
            return ""
        how = self._draw()
        if how < 0.4:
            return "lost"
        if how < 0.6 and kind in _LATE:  # the client has given up, and the server has not
            self.clock.after(self._random.uniform(0, 3), lambda: _ignored(apply, args))
        raise _error(self._random.choice(_TRANSIENT), *args[:1])

    # Operations on files

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: None = None) -> int:
        return int(self._do("create" if flags & os.O_EXCL else "open", self._open, path, flags))

    def _open(self, path: str, flags: int) -> int:
        if path in self.server.directories:
            if flags & os.O_CREAT:
                raise _error(errno.EEXIST if flags & os.O_EXCL else errno.EISDIR, path)
            return self._new_fd(None, path, False)
        if flags & os.O_DIRECTORY:
            raise _error(errno.ENOENT, path)
        inode = self._seen(path) if not flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) else self.server.entry(path)
        if inode is None:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT, path)
            self._refused(path)
            inode = self.server.inode()
            inode.synced = False
            self._unsynced.append(inode)
            self._change(path, inode)
        elif flags & os.O_EXCL:
            raise _error(errno.EEXIST, path)
        if flags & os.O_TRUNC:
            inode.data, inode.synced = b"", False
        return self._new_fd(inode, path, bool(flags & (os.O_WRONLY | os.O_RDWR)))

    def _new_fd(self, inode: Inode | None, path: str, writes: bool) -> int:
        self._fd += 1
        self._files[self._fd] = inode, path, writes
        return self._fd

    def write(self, fd: int, data: bytes | memoryview) -> int:
        return int(self._do("write", self._write, fd, data))

    def _write(self, fd: int, data: bytes | memoryview) -> int:
        inode, path, _ = self._files[fd]
        self._refused(path)
        assert inode is not None
        part = bytes(data)
        if self._error_rate and len(part) > 1:
            part = part[: self._random.randrange(1, len(part))]
        inode.data, inode.synced = inode.data + part, False
        return len(part)

    def read(self, fd: int, size: int) -> bytes:
        inode = self._files[fd][0]
        assert inode is not None
        data = inode.data
        self._files[fd] = Inode(0), "", False  # read once, then at the end of the file
        return bytes(self._do("read", lambda: data))

    def fsync(self, fd: int) -> None:
        self._do("fsync", self._fsync, fd)

    def _fsync(self, fd: int) -> None:
        inode, path, writes = self._files[fd]
        if writes:
            self._refused(path)
        if inode is not None:
            inode.synced = True
            self._unsynced = []

    def close(self, fd: int) -> None:
        self._files.pop(fd, None)
        self._do("close", _nothing)

    def fstat(self, fd: int) -> Any:
        return self._do("stat", lambda inode: self._status(inode), self._files[fd][0])

    # Operations on names

    def link(self, src: str, dst: str, **_: Any) -> None:
        self._do("link", self._link, src, dst)

    def _link(self, src: str, dst: str) -> None:
        if self._traits.links != "hard":
            raise _error(errno.EOPNOTSUPP, dst)
        inode = self.server.entry(src)
        if inode is None:
            raise _error(errno.ENOENT, src)
        self._free(dst)
        self._change(dst, inode)

    def symlink(self, src: str, dst: str, **_: Any) -> None:
        self._do("symlink", self._symlink, dst, src)

    def _symlink(self, dst: str, src: str) -> None:
        self._free(dst)
        self._change(dst, self.server.inode(target=src))

    def readlink(self, path: str) -> str:
        inode: Inode | None = self._do("read", self._seen, path)
        if inode is None or inode.target is None:
            raise _error(errno.ENOENT if inode is None else errno.EINVAL, path)
        return inode.target

    def replace(self, src: str, dst: str) -> None:
        self._do("replace", self._replace, src, dst)

    rename = replace

    def _replace(self, src: str, dst: str) -> None:
        if src in self.server.directories:
            self._move_directory(src, dst)
            return
        inode = self.server.entry(src)
        if inode is None:
            raise _error(errno.ENOENT, src)
        self._change(src, None)
        self._change(dst, inode)
        parent, _, old = src.rpartition("/")
        if not old.startswith(".") and parent == dst.rpartition("/")[0]:
            self.server.directory(parent).renamed.append((self.clock.now, old, dst.rpartition("/")[2], self))

    def _move_directory(self, src: str, dst: str) -> None:
        self._unhook(src)
        self._hook(dst)
        moved = [path for path in self.server.directories if path == src or path.startswith(f"{src}/")]
        for path in moved:
            self.server.directories[dst + path[len(src) :]] = self.server.directories.pop(path)

    def unlink(self, path: str, **_: Any) -> None:
        self._do("unlink", self._unlink, path)

    remove = unlink

    def _unlink(self, path: str) -> None:
        if self.server.entry(path) is None:
            raise _error(errno.ENOENT, path)
        self._change(path, None)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        self._do("mkdir", self._mkdir, path)

    def _mkdir(self, path: str) -> None:
        if path in self.server.directories or self.server.entry(path) is not None:
            raise _error(errno.EEXIST, path)
        self.server.directory(path.rpartition("/")[0] or "/")
        self._refused(path)
        self._hook(path)
        self.server.directories[path] = Directory()

    def _hook(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        self.server.directory(parent or "/").below[name] = None

    def _unhook(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        self.server.directory(parent or "/").below.pop(name, None)

    def rmdir(self, path: str) -> None:
        self._do("unlink", self._rmdir, path)

    def _rmdir(self, path: str) -> None:
        directory = self.server.directory(path)
        if directory.below or any(changes[-1][1] for changes in directory.names.values()):
            raise _error(errno.ENOTEMPTY, path)
        del self.server.directories[path]
        self._unhook(path)

    def listdir(self, path: str) -> list[str]:
        found: list[str] = self._do("list", self._listed, path)
        return found

    def _listed(self, path: str) -> list[str]:
        directory = self.server.directory(path)
        self.server.listed(path, self)
        lag, now = self._traits.listing, self.clock.now
        found = {name: True for name, changes in directory.names.items() if changes[-1][1] is not None}
        if lag and directory.recent and directory.recent[-1][0] > now - lag:
            until = now - self._random.uniform(0, lag)
            for when, name, by in directory.recent:
                if when > until and by is not self:
                    found[name] = self._as_of(directory.names[name], until) is not None
        for when, old, new, by in directory.renamed:
            if when > now - _AMID and by is not self and found.get(new) and self._draw() < _MISSED:
                found[old] = found[new] = self._draw() < 0.3
        return [name for name, there in found.items() if there] + list(directory.below)

    def utime(self, path: str, ns: tuple[int, int]) -> None:
        self._do("stat", _nothing)

    def scandir(self, path: str) -> Any:
        entries = [
            SimpleNamespace(name=name, is_file=lambda follow_symlinks=True, name=name: self._is_file(f"{path}/{name}"))
            for name in self.listdir(path)
        ]
        return nullcontext(entries)

    def _is_file(self, path: str) -> bool:
        inode = self._seen(path)
        return inode is not None and inode.target is None

    # Operations of pathlib on whole files

    def read_bytes(self, path: str) -> bytes:
        content: bytes = self._do("read", self._read_bytes, path)
        return content

    def _read_bytes(self, path: str) -> bytes:
        inode = self._seen(path)
        if inode is None:
            raise _error(errno.ENOENT, path)
        parent = path.rpartition("/")[0]
        if inode.target is not None:
            pointed = self._seen(inode.target if inode.target.startswith("/") else f"{parent}/{inode.target}")
            if pointed is None:
                raise _error(errno.ENOENT, path)
            return pointed.data
        return inode.data

    def lstat(self, path: str) -> Any:
        return self._do("stat", lambda path: self._status(self._seen(path), path), path)

    stat = lstat

    def _status(self, inode: Inode | None, path: str = "") -> Any:
        if inode is None and path not in self.server.directories:
            raise _error(errno.ENOENT, path)
        link = inode is not None and inode.target is not None
        kind = 0o120777 if link else (0o100600 if inode else 0o040700)
        size = len(inode.data) if inode else 0
        number, links = (inode.number, inode.links) if inode else (1, 1)
        return SimpleNamespace(st_ino=number, st_size=size, st_mode=kind, st_nlink=links, st_mtime_ns=number, st_dev=1)

    # The content that this mount shows

    def _seen(self, path: str) -> Inode | None:
        """Return the inode of a name as this client sees it now."""
        parent, _, name = path.rpartition("/")
        changes = self.server.directory(parent or "/").names.get(name)
        traits, now = self._traits, self.clock.now
        if traits.negative:
            if self._absent.get(path, 0.0) > now:
                return None
            if changes is None or changes[-1][1] is None:
                self._absent[path] = now + self._random.uniform(0, traits.negative)
        if changes is None:
            return None
        when, inode, by = changes[-1]
        if by is self or when <= now - traits.staleness or (len(changes) == 1 and not traits.listing):
            return inode
        seen = self._as_of(changes, now - self._random.uniform(0, traits.staleness))
        if seen is None and inode is not None and len(changes) == 1:
            return self._as_of(changes, now - self._random.uniform(0, traits.listing))
        if seen is not inode and traits.stale_handles and self._draw() < traits.stale_handles:
            raise _error(errno.ESTALE, path)
        return seen

    def _as_of(self, changes: list[_Change], until: float) -> Inode | None:
        """Return an earlier inode of a name. A client sees its own changes at once."""
        for when, inode, by in reversed(changes):
            if when <= until or by is self:
                return inode
        return None

    def _change(self, path: str, inode: Inode | None) -> None:
        if self._absent:
            parent = path.rpartition("/")[0]  # a change of a directory invalidates the cached absence of names
            self._absent = {other: until for other, until in self._absent.items() if not other.startswith(parent)}
        self.server.change(path, inode, self)

    def _free(self, path: str) -> None:
        if self.server.entry(path) is not None or path in self.server.directories:
            raise _error(errno.EEXIST, path)
        self._refused(path)

    def _refused(self, path: str) -> None:
        if self.server.refuses:
            raise _error(self.server.refuses, path)


def _error(number: int, path: Any = "") -> OSError:
    return OSError(number, os.strerror(number), str(path))


def _nothing() -> None:
    return


def _ignored(apply: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Apply a late change on the server after its client has given up. Errors are ignored."""
    try:
        apply(*args)
    except OSError:
        return
