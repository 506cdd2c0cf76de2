"""Simulated modules for the code under test: ``os``, ``pathlib.Path``, ``filelock``, ``threading``, ``time``.

All of it acts for the process that runs at this moment (`System.mount`) and for the clock of its simulation.
"""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import fields
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar

from hpcelastic.protocol.codec import DecodeError, decode, encode, updated
from hpcelastic.protocol.state import Member
from hpcelastic.storage.mounts import UNKNOWN
from hpcelastic.storage.mounts import Mount as Mounted
from tests.simulation.clock import Clock, Condition, Event, Task
from tests.simulation.filesystem import Mount


class Place(str):
    """A path of the simulated filesystem, with those methods of `pathlib.Path` that the code under test uses."""

    __slots__ = ()
    system: ClassVar["System"]

    def __truediv__(self, name: object) -> "Place":
        return type(self)(f"{self}/{name}")

    @property
    def name(self) -> str:
        return self.rpartition("/")[2]

    @property
    def parent(self) -> "Place":
        return type(self)(self.rpartition("/")[0] or "/")

    def with_name(self, name: str) -> "Place":
        return type(self)(f"{self.rpartition('/')[0]}/{name}")

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        try:
            self.system.mount.mkdir(self, mode)
        except FileExistsError:
            if not exist_ok:
                raise

    def read_bytes(self) -> bytes:
        return self.system.mount.read_bytes(self)

    def is_symlink(self) -> bool:
        try:
            return bool(self.system.mount.lstat(self).st_mode & 0o020000)
        except OSError:
            return False

    def is_dir(self) -> bool:
        try:
            return bool(self.system.mount.stat(self).st_mode & 0o040000)
        except OSError:
            return False

    def readlink(self) -> "Place":
        return type(self)(self.system.mount.readlink(self))

    def exists(self) -> bool:
        try:
            self.system.mount.stat(self)
        except OSError:
            return False
        return True

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self.system.mount.unlink(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def iterdir(self) -> Any:
        return (self / name for name in self.system.mount.listdir(self))


class System:
    """The machine of the code under test. ``mount`` is the mount of the process that runs now."""

    def __init__(self) -> None:
        self.mount: Mount = None  # type: ignore[assignment]  # set before anything runs
        self.guarded: Any = None
        """The guard that runs at this moment."""

        self.random = Random(0)
        self._encoded: dict[int, tuple[Any, Any]] = {}
        self._documents: dict[bytes, Any] = {}
        self.path: type[Place] = type("SimulatedPath", (Place,), {"system": self, "__slots__": ()})
        self._values: dict[tuple[Any, int], tuple[Any, Any]] = {}

    @property
    def clock(self) -> Clock:
        return self.mount.clock

    def modules(self) -> dict[str, Any]:
        """Simulated replacements of the modules that the code under test imports."""
        return {
            "os": _Os(self),
            "pathlib": SimpleNamespace(Path=self.path),
            "filelock": SimpleNamespace(FileLock=self._lock, Timeout=_LockTimeout, BaseFileLock=_FileLock),
            "threading": SimpleNamespace(
                Event=lambda: Event(self.clock),
                Condition=lambda: Condition(self.clock),
                Thread=self._thread,
                Lock=_Lock,
            ),
            "time": SimpleNamespace(
                monotonic=self._monotonic,
                time=self._monotonic,
                time_ns=lambda: int(self._monotonic() * 1e9),
                sleep=self.sleep,
            ),
            "secrets": SimpleNamespace(token_hex=self._token),
            "random": SimpleNamespace(uniform=self._uniform),
            "json": SimpleNamespace(loads=self.parsed, dumps=self._dumps),
            "hpcelastic.storage.mounts": SimpleNamespace(Mount=Mounted, mount_of=lambda path: UNKNOWN),
            "hpcelastic.protocol.codec": SimpleNamespace(
                decode=self.decode,
                encode=self.encode,
                updated=updated,
                DecodeError=DecodeError,
            ),
        }

    def encode(self, value: Any) -> Any:
        """`codec.encode`. Many leases have equal members, and data that was encoded here need not be decoded."""
        if isinstance(value, Member):
            found = self._encoded.get(id(value))
            if found is None:
                found = self._encoded[id(value)] = value, encode(value)
            return found[1]
        if hasattr(value, "member"):
            data = {field.name: self.encode(getattr(value, field.name)) for field in fields(value)}
            self._values[type(value), id(data)] = data, value
            return data
        return encode(value)

    def _dumps(self, value: Any, **options: Any) -> str:
        text = json.dumps(value, **options)
        self._documents[f"{text}\n".encode()] = value
        return text

    def decode(self, kind: Any, data: Any) -> Any:
        """`codec.decode`, executed once for data that all nodes read: `parsed` returns the same object for them."""
        found = self._values.get((kind, id(data)))
        if found is None:
            found = self._values[kind, id(data)] = data, decode(kind, data)
        return found[1]

    def start(self, random: Random) -> None:
        """Begin a new simulation."""
        self.random = random
        self._encoded.clear()
        self._documents.clear()
        self._values.clear()

    def _monotonic(self) -> float:
        return self.mount.node_clock()

    def _uniform(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)

    def sleep(self, seconds: float) -> None:
        task = self.clock.task
        assert task is not None
        task.pause(task.lasting(seconds))

    def _token(self, size: int) -> str:
        return f"{self.random.getrandbits(8 * size):0{2 * size}x}"

    def parsed(self, data: bytes | str) -> Any:
        """`json.loads`, executed once for equal data."""
        key = data if isinstance(data, bytes) else data.encode()
        found = self._documents.get(key)
        if found is None:
            found = self._documents[key] = json.loads(data)
        return found

    def _thread(self, target: Callable[[], None], **_: Any) -> Task:
        mount = self.mount
        return Task(mount.process, target, lambda: setattr(self, "mount", mount))

    def _lock(self, path: str, timeout: float = -1, **_: Any) -> "_FileLock":
        return _FileLock(self.mount, str(path), timeout)


class _LockTimeout(TimeoutError):
    """`filelock.Timeout`."""


class _Lock:
    """`threading.Lock`, without effect because only one task runs at a time."""

    def __enter__(self) -> "_Lock":
        return self

    def __exit__(self, *_: object) -> None:
        return


class _FileLock:
    """`filelock.FileLock`, with the guarantees of the simulated filesystem."""

    def __init__(self, mount: Mount, path: str, timeout: float) -> None:
        self._mount, self._timeout = mount, timeout
        self._kind = mount.server.traits.locks
        self._path = f"{path} on {mount.name}" if self._kind == "local" else path
        self._mine = False

    def acquire(self, timeout: float | None = None, poll_interval: float = 0.05, **_: Any) -> "_FileLock":
        mount = self._mount
        mount.listdir(self._path.rpartition("/")[0])  # a round trip, which may fail, hang, or be interrupted for ever
        if self._kind == "absent":
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        if self._kind == "never":
            return self
        locks, limit = mount.server.locks, self._timeout if timeout is None else timeout
        deadline = mount.clock.now + limit
        while self._path in locks:
            if mount.clock.now >= deadline >= 0:
                raise _LockTimeout
            assert mount.clock.task is not None
            mount.clock.task.pause(max(mount.lock_poll, poll_interval))
        locks[self._path] = mount
        self._mine = True
        return self

    def release(self) -> None:
        if self._mine and not self._mount.process.gone:
            self._mount.server.locks.pop(self._path, None)
        self._mine = False

    def __enter__(self) -> "_FileLock":
        return self if self._mine or self._kind == "never" else self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Os:
    """Module `os`, over the mount of the process that runs now."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.strerror, self.fspath = os.strerror, os.fspath
        self.utime = lambda *_, **__: None
        self.path = SimpleNamespace(
            lexists=self._there, exists=self._there, isdir=self._is_directory, samestat=os.path.samestat
        )
        for name, value in vars(os).items():
            if isinstance(value, int | type):
                setattr(self, name, value)

    def _there(self, path: str) -> bool:
        return self._system.path(path).exists()

    def _is_directory(self, path: str) -> bool:
        try:
            return bool(self._system.mount.stat(path).st_mode & 0o040000)
        except OSError:
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system.mount, name)
