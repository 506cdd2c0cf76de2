"""The modules that a worker imports, and their import in the fork server, so that later workers start faster.

A worker records the names of modules in memory that it shares with its fork server. The fork server does not import
them itself, because an import may make it unsafe to fork. It tries them in a fork of its own, which replaces it if all
is well: see `fork_server_main`. Only modules of the standard library, of installed packages and of hpcelastic are
repeated. The user's own modules may change between two rounds.

This file imports no module of this package, because the fork server loads it by its path.
"""

import contextlib
import importlib
import importlib.machinery
import mmap
import os
import select
import signal
import site
import socket
import struct
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

_INTERVAL = 1.0
"""Seconds without an import of a worker after which its imports are repeated."""

_LEARNING_TIME = 60.0
"""Seconds after the start of a worker in which its imports are repeated. Later ones wait for the next worker."""

_MAX_REPLACEMENTS = 20
"""Number of replacements that one fork server forks."""

_SIZE = 1 << 18
_LENGTH = struct.Struct("q")
"""The length of the names in bytes, at the start of the memory."""

VARIABLES = frozenset({
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "WORLD_SIZE",
})  # fmt: skip
"""Environment variables that differ between workers. Some users also export them for the agents."""

_CHANGE = "$"
"""Begins the record of a changed environment variable: ``$NAME=VALUE``, or ``$NAME`` if it was removed."""

_OWN_PACKAGE = os.path.basename(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
"""The package of this file, which may be in a checkout."""

PREFIXES = ("HPCELASTIC_", "TORCHELASTIC_")
"""Begin the names of other variables of a worker, which differ between workers if an agent does not have them."""


class ImportRecord:
    """Names of modules in the order of their first import, in memory that forks share. One process adds at a time."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE)

    def add(self, name: str) -> None:
        """Add a name. It is lost if the memory is full."""
        line = name.encode(errors="replace") + b"\n"
        start = _LENGTH.size + self._length
        if start + len(line) <= _SIZE:
            self._memory[start : start + len(line)] = line
            _LENGTH.pack_into(self._memory, 0, self._length + len(line))  # last: a reader sees only whole names

    def names(self) -> list[str]:
        """Return all names."""
        return self._memory[_LENGTH.size : _LENGTH.size + self._length].decode(errors="replace").split("\n")[:-1]

    @property
    def _length(self) -> int:
        length: int = _LENGTH.unpack_from(self._memory, 0)[0]
        return length


class ImportRecorder:
    """An entry of ``sys.meta_path`` that finds no module. It records each module that its process searches.

    It also records the environment variables that the process changes between two imports, because a package may read
    them at its import. It ends with a change of the import path or of the other finders, after which a name may mean
    another module.
    """

    def __init__(self, record: ImportRecord) -> None:
        self._record, self._pid = record, os.getpid()
        self._environ, self._path, self._finders = dict(os.environ), list(sys.path), list(sys.meta_path)
        self._ended = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if self._ended or os.getpid() != self._pid:  # a child process has the entry too
            return
        if path is None:
            self._record_changes()
        if not self._ended:
            self._record.add(name)

    def _record_changes(self) -> None:
        path, finders = self._path, [self, *self._finders]
        self._ended = sys.path[: len(path)] != path or sys.meta_path[: len(finders)] != finders
        environ = dict(os.environ)
        for name in self._environ.keys() | environ.keys():
            value = environ.get(name)
            if value == self._environ.get(name):
                continue
            change = _CHANGE + name + ("" if value is None else f"={value}")
            if "\n" in change:
                self._ended = True
            else:
                self._record.add(change)
        self._environ = environ


class ImportLearner:
    """The imports of the workers of a fork server, and its replacement, which repeats them.

    ``fork`` is called with both ends of a connection. It forks this process, and returns True in the new process, which
    keeps the first end only.
    """

    def __init__(self, fork: Callable[[socket.socket, socket.socket], bool]) -> None:
        self._fork = fork
        self._record = ImportRecord()
        self._count = 0
        """The number of recorded names at the last look."""

        self._names: list[str] = []
        """The names that a replacement imports."""

        self._tried: set[str] = set()
        """Names that this process or an earlier fork server has imported or failed to import."""

        self._excluded: set[str] = set()
        """Packages that are not imported: they are not installed, or no fork could be trusted after their import."""

        self._until = 0.0
        """The time at which learning ends, in seconds of time.monotonic()."""

        self._forks_left = _MAX_REPLACEMENTS
        self._peer: socket.socket | None = None
        """The connection to the replacement; in a replacement, to the old server until it has ended."""

    @property
    def has_replacement(self) -> bool:
        """Whether this process has a replacement, which may still be importing."""
        return self._peer is not None

    def record_imports(self) -> None:
        """Record the imports of this process, a worker, from now on."""
        sys.meta_path.insert(0, ImportRecorder(self._record))

    def close(self) -> None:
        """Close the connection in a worker. The replacement waits until the fork server has closed it."""
        if self._peer is not None:
            self._peer.close()

    def worker_spawned(self) -> None:
        """Learn from the imports of a worker for some time."""
        self._until = time.monotonic() + _LEARNING_TIME

    def learn_until_readable(self, control: socket.socket) -> bool:
        """Return True once ``control`` is readable. Meanwhile a replacement may be forked: return False there."""
        while True:
            learns = self._peer is None and self._forks_left > 0 and time.monotonic() < self._until
            sources = [control] if self._peer is None else [control, self._peer]
            ready, _, _ = select.select(sources, [], [], _INTERVAL if learns else None)
            if control in ready:
                return True
            if ready:
                self._replacement_ended()
            elif learns and self._imports_are_new() and self._fork_replacement():
                return False

    def _imports_are_new(self) -> bool:
        """Return whether there are names to import. While workers add names, there are none."""
        recorded = self._record.names()
        grows, self._count = len(recorded) > self._count, len(recorded)
        if grows:
            return False
        new = [name for name in dict.fromkeys(recorded) if name not in sys.modules and name not in self._tried]
        packages = {name.partition(".")[0] for name in new if not name.startswith(_CHANGE)} - self._excluded
        self._excluded.update(package for package in packages if not is_installed(package))
        self._names = [name for name in new if name.partition(".")[0] not in self._excluded]
        return not all(name.startswith(_CHANGE) for name in self._names)

    def _fork_replacement(self) -> bool:
        self._forks_left -= 1
        ours, theirs = socket.socketpair()
        if self._fork(theirs, ours):
            self._peer = theirs
            return True
        self._peer = ours
        theirs.close()
        return False

    def _replacement_ended(self) -> None:
        """Exclude the package that the replacement has reported, if it was not killed."""
        assert self._peer is not None
        with contextlib.suppress(OSError):
            if package := self._peer.recv(4096).decode():
                self._excluded.add(package)
        self._peer.close()
        self._peer = None

    # In the replacement

    def repeat_imports(self, reason_not_to_fork: Callable[[], str | None]) -> str | None:
        """Import the modules. Return the package after whose import no fork can be trusted; None if there is none.

        ``reason_not_to_fork`` is called after each import. A fork is tried after consecutive imports of one package,
        because it takes longer than most imports. A package that reads a variable of a worker is not trusted either,
        because it would have the value of another worker. A missing module is skipped. No module is imported that the
        worker imported after its script had changed the environment.
        """
        threads = _thread_count()
        self._tried.update(name for name in self._names if not name.startswith(_CHANGE))
        with _exit_statuses(), _variables_read() as read:
            for name, next_name in zip(self._names, [*self._names[1:], ""], strict=True):
                if name.startswith(_CHANGE):
                    if not _is_in_effect(name):
                        break
                    continue
                package = name.partition(".")[0]
                try:
                    importlib.import_module(name)
                except ImportError:
                    pass  # the worker has continued without it
                except (Exception, SystemExit):
                    return package
                last = next_name.partition(".")[0] != package
                if read or reason_not_to_fork() or (last and _fork_is_unsafe(threads, reason_not_to_fork)):
                    return package
        return None

    def report_unsafe(self, package: str) -> None:
        """Report to the old server that a package must not be imported. Raises OSError if it has ended."""
        assert self._peer is not None
        self._peer.sendall(package.encode())

    def await_end_of_old_server(self) -> None:
        """Wait until the old server has ended. Then this process is the fork server."""
        assert self._peer is not None
        self._peer.recv(1)
        self._peer.close()
        self._peer = None
        self._forks_left = _MAX_REPLACEMENTS
        self.worker_spawned()


def _is_in_effect(change: str) -> bool:
    """Return whether this process has a changed variable too, because an imported package has changed it."""
    name, equals, value = change.removeprefix(_CHANGE).partition("=")
    return os.environ.get(name) == (value if equals else None)


def is_installed(package: str) -> bool:
    """Return whether a package belongs to the standard library, was installed by an installer, or is hpcelastic."""
    if package == _OWN_PACKAGE or package in sys.builtin_module_names or package in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.machinery.PathFinder.find_spec(package)
    except Exception:  # an entry of sys.path_hooks of the user
        return False
    if spec is None:
        return False
    places = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
    return all(os.path.realpath(place).startswith(_installed_directories()) for place in places)


def _installed_directories() -> tuple[str, ...]:
    paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    return tuple(os.path.join(os.path.realpath(path), "") for path in [*paths, site.getusersitepackages()])


@contextlib.contextmanager
def _variables_read() -> Iterator[list[str]]:
    """Yield a list that receives the names of the variables of a worker that Python code reads in the block."""
    read: list[str] = []
    environ = type(os.environ)
    original = environ.__getitem__

    def get(self: "os._Environ[str]", name: str) -> str:
        if name in VARIABLES:
            read.append(name)
        try:
            return original(self, name)
        except KeyError:
            if name.startswith(PREFIXES):
                read.append(name)
            raise

    environ.__getitem__ = get  # type: ignore[method-assign]  # for the time of the block
    try:
        yield read
    finally:
        environ.__getitem__ = original  # type: ignore[method-assign]


@contextlib.contextmanager
def _exit_statuses() -> Iterator[None]:
    """Let this process get the exit statuses of its children in the block.

    The fork server ignores SIGCHLD. A package may start a program at its import, and wait for it.
    """
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


def _thread_count() -> int:
    """Return the number of threads of this process, native ones included."""
    return len(os.listdir("/proc/self/task"))


def _fork_is_unsafe(threads: int, reason_not_to_fork: Callable[[], str | None]) -> bool:
    """Return whether a fork of this process, which had so many threads before, cannot be trusted. It forks to find out.

    OpenBLAS ends its threads before a fork, so threads are counted after it. Some devices report only in the fork that
    it cannot use them.
    """
    if reason_not_to_fork():
        return True
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about a fork with threads, which is what is tried
        child = os.fork()
    if child == 0:
        if reason_not_to_fork():
            os.write(theirs, b"unsafe")
        os._exit(0)
    remaining = _thread_count()
    os.close(theirs)
    with open(ours, "rb") as reader:
        unsafe = reader.read() != b""  # not an exit status, because a package may handle SIGCHLD
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    return unsafe or remaining > threads
