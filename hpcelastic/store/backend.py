"""What a run's rendezvous is kept in: files of its directory, or a server that the user names.

A backend supplies a register, leases and their observer; the protocol above is the same over all of them. Which one a
run has is written in its directory, so that whoever knows the directory finds it. A server's backend is built from a
few operations on records (`hpcelastic.store.records`), and who has another server adds it by an entry point:

    [project.entry-points."hpcelastic.backends"]
    mine = "my_package.module:connect"

``connect(endpoint: str, run_id: str, agent: bool)`` returns `hpcelastic.store.records.Records`; ``agent`` is True for
one of the run's agents, which may serve, and False for a reader. Further parameters named as settings of the rendezvous
(``prefix``, ``cacert``, ``cert``, ``key``) are given where the settings have them; a backend whose ``connect`` does not
take a setting that is given is refused.
"""

import contextlib
import inspect
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Protocol

from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol.settings import FILE, PREFIX, RendezvousSettings
from hpcelastic.protocol.state import Member, Seen
from hpcelastic.store import files
from hpcelastic.store.copies import StateCopies
from hpcelastic.store.lease_names import foremost
from hpcelastic.store.leases import Lease, LeaseObserver, OwnLease, read_leases
from hpcelastic.store.locks import LockKind
from hpcelastic.store.paths import RunPaths
from hpcelastic.store.records import Records, RecordsBackend
from hpcelastic.store.register import FIRST, Register, Version
from hpcelastic.store.server_address import read_address

GROUP = "hpcelastic.backends"
"""Entry points by which others add backends."""

_OPTIONS = {"prefix": PREFIX, "cacert": "", "cert": "", "key": ""}
"""Settings that say how a server is asked, with their defaults."""

_CHOICE = ("backend", "endpoint", "run_id", *_OPTIONS)
"""What is written of a run's backend; of the options those that are not at their defaults."""

_TORCHS_VOICE = "TORCH_CPP_LOG_LEVEL"
"""Read by torch as it is imported, and not to be handed on to workers."""

_OURS = {
    "c10d": "hpcelastic.pytorch.c10d:connect",
    "static": "hpcelastic.pytorch.c10d:connect",
    "etcd-v2": "hpcelastic.store.etcd:connect_v2",
    "etcd": "hpcelastic.store.etcd:connect",
}
"""Loaded once they are asked for: an agent needs none of them."""


class AnyRegister(Protocol):
    """A versioned value, changed by compare-and-set; see `Register`."""

    @property
    def where(self) -> str:
        """Where it is kept, for people."""

    def read(self) -> Version:
        """The newest version."""

    def commit(self, after: int, value: Any) -> bool:
        """Make ``value`` version ``after`` + 1; False if that number is taken."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Keeps contention cheap; nothing rests on it."""


class AnyLease(Protocol):
    """The lease of this node; see `OwnLease`."""

    def renew(self, member: Member) -> None:
        """Publish the next beat."""


class AnyObserver(Protocol):
    """Watches the leases of all nodes; see `LeaseObserver`."""

    def observe(self, expected: Iterable[str]) -> Mapping[str, Seen]:
        """All nodes that have a lease, and those ``expected`` to have one."""

    def expires(self, node: str) -> float:
        """When a look that finds the node's lease unmoved proves it dead; infinite if it was never seen."""

    def mark(self, node: str) -> str | None:
        """What changes whenever the node's lease moves; None if it was never seen."""


class Backend(Protocol):
    """Where the rendezvous of one run is kept."""

    def register(self, writer: str, lock: LockKind = LockKind.NATIVE) -> AnyRegister:
        """The register of the run's state."""

    def lease(self, node: str) -> AnyLease:
        """The lease of ``node``, for its owner."""

    def observer(self, expiry: float, clock: Callable[[], float]) -> AnyObserver:
        """Who watches the leases, each for ``expiry`` seconds."""

    def leases(self, of: str = "") -> Mapping[str, Lease]:
        """All leases, by node; with ``of``, those of the nodes that have that name."""

    def glance(self, count: int) -> tuple[int, list[Member]]:
        """How many leases there are, and the ``count`` first of the ready nodes by their order."""

    def close(self) -> None:
        """Nothing more is asked of it here."""


class FileBackend:
    """Files of the run's directory: no server, nobody who must stay alive."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths

    def register(self, writer: str, lock: LockKind = LockKind.NATIVE) -> Register:
        return Register(self._paths.register, writer, lock)

    def lease(self, node: str) -> OwnLease:
        return OwnLease(self._paths.leases, node)

    def observer(self, expiry: float, clock: Callable[[], float]) -> LeaseObserver:
        return LeaseObserver(self._paths.leases, expiry, clock)

    def leases(self, of: str = "") -> dict[str, Lease]:
        return read_leases(self._paths.leases, of)

    def glance(self, count: int) -> tuple[int, list[Member]]:
        names = files.names(self._paths.leases)
        return len(names), foremost(names, count)

    def close(self) -> None: ...


class KnownBackend:
    """The newest copy of the state of a run that is kept in a server; nothing can be changed here."""

    def __init__(self, where: str, copy: Version) -> None:
        self.where, self._version = where, copy

    def register(self, writer: str, lock: LockKind = LockKind.NATIVE) -> "KnownBackend":
        return self

    def read(self) -> Version:
        return self._version

    def commit(self, after: int, value: Any) -> bool:
        raise self._unreached()

    def lock(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def lease(self, node: str) -> AnyLease:
        raise self._unreached()

    def observer(self, expiry: float, clock: Callable[[], float]) -> AnyObserver:
        raise self._unreached()

    def leases(self, of: str = "") -> dict[str, Lease]:
        return {}

    def glance(self, count: int) -> tuple[int, list[Member]]:
        return 0, []

    def close(self) -> None: ...

    def _unreached(self) -> StoreError:
        return StoreError(f"{self.where}: the server that keeps this run can't be reached, or knows nothing of it")


Connect = Callable[..., Records]

_opened: dict[str, Backend] = {}
_looked: dict[str, RecordsBackend] = {}
"""By the run's directory: those that agents in this process have opened, and those through which somebody looks. A
server is connected to once."""


def backend_of(paths: RunPaths) -> Backend:
    """The backend of a run, as its directory says.

    Where its server can't be asked, or knows nothing of it, that which the directory knows; StoreError if it does not.
    """
    root = str(paths.root)
    if root in _opened:
        return _opened[root]
    if files.names(paths.register):  # no run in a server has versions here
        return FileBackend(paths)
    chosen = _chosen(paths)
    copies = StateCopies(paths)
    copy = copies.read()
    if chosen is None:
        return KnownBackend(copies.where, copy) if copy else FileBackend(paths)
    try:
        backend = _looked.pop(root, None) or _looked_at(paths, chosen)
        if backend.register("").read().number == 0 and copy:
            return KnownBackend(copies.where, copy)
    except StoreError:
        if not copy:
            raise
        return KnownBackend(copies.where, copy)
    _looked[root] = backend
    return backend


def choose_backend(
    paths: RunPaths, run_id: str, settings: RendezvousSettings, address: str = "", is_host: bool | None = None
) -> Backend:
    """Open the backend that ``settings`` name, for the run in ``paths``; at ``address`` where they name no server.

    ``is_host`` says whether this process serves a store of torch; None leaves it to that.
    ConfigError if there is no such backend, or the run is kept in another one; StoreError where its server can't be
    reached.
    """
    wanted = _written(run_id, settings)
    chosen = _chosen(paths)
    if settings.backend != FILE and chosen is None and not files.names(paths.register):
        note_backend(paths, run_id, settings)
        chosen = files.read_json(paths.backend)
    if settings.backend == FILE and chosen is None:
        backend: Backend = FileBackend(paths)
    elif chosen is not None and {key: chosen[key] for key in _CHOICE if key in chosen} == wanted:
        more = {} if is_host is None else {"is_host": is_host}
        backend = _connected(paths, wanted, address or settings.endpoint, agent=True, **more)
    else:
        theirs, ours = (_in_words(chosen) if chosen else FILE), _in_words(wanted)
        raise ConfigError(
            f"{paths.root}: the rendezvous of this run is kept in {theirs}, not in {ours}; every agent of a run must "
            "name the same backend and endpoint: repeat those, or use another run id"
        )
    _opened[str(paths.root)] = backend
    return backend


def note_backend(paths: RunPaths, run_id: str, settings: RendezvousSettings) -> None:
    """Write in a run's directory which backend it has, unless somebody has. ConfigError if there is no such backend."""
    written = _written(run_id, settings)
    _factory(settings.backend, _options(written))
    document = {**written, "nonce": secrets.token_hex(8)}
    files.publish_new(paths.backend, files.to_json(document))


def close_backend(paths: RunPaths) -> None:
    """This process takes no part in the run any more."""
    backend = _opened.pop(str(paths.root), None)
    if backend is not None:
        backend.close()


def backends() -> list[str]:
    """The names of all backends that there are here."""
    return sorted({FILE, *_OURS, *(point.name for point in entry_points(group=GROUP))})


def _chosen(paths: RunPaths) -> Any:
    """What is written of the run's backend; None if its files are that. By listing, for absence is remembered."""
    there = paths.backend.name in files.names(paths.backend.parent)
    return files.read_json(paths.backend) if there else None


def birth(paths: RunPaths) -> str:
    """What tells a run from one of the same name that was made anew: a nonce."""
    document = _chosen(paths) or files.read_json(paths.register / FIRST)
    if not isinstance(document, Mapping) or not isinstance(document.get("nonce"), str):
        raise StoreError(f"{paths.root}: holds no run; HPCELASTIC_RUN_DIR must name the directory of one")
    nonce: str = document["nonce"]
    return nonce


def _in_words(chosen: Mapping[str, str]) -> str:
    where = f" at {chosen['endpoint']}" if chosen["endpoint"] else ""
    options = "".join(f", {key} {value}" for key, value in _options(chosen).items())
    return f"{chosen['backend']}{where}{options}"


def _written(run_id: str, settings: RendezvousSettings) -> dict[str, str]:
    options = {name: getattr(settings, name) for name in _OPTIONS}
    given = {name: value for name, value in options.items() if value != _OPTIONS[name]}
    return {"backend": settings.backend, "endpoint": settings.endpoint, "run_id": run_id, **given}


def _options(chosen: Mapping[str, str]) -> dict[str, str]:
    return {name: chosen[name] for name in _OPTIONS if name in chosen}


def _looked_at(paths: RunPaths, chosen: Mapping[str, str]) -> RecordsBackend:
    """The backend that a run's directory names, for a reader."""
    endpoint = chosen["endpoint"]
    if RendezvousSettings(backend=chosen["backend"], endpoint=endpoint).found:
        address = read_address(paths)
        if address is None:
            raise StoreError(f"{paths.root}: no server keeps this run now")
        endpoint = address.address
    return _connected(paths, chosen, endpoint, agent=False)


def _connected(
    paths: RunPaths, chosen: Mapping[str, str], endpoint: str, *, agent: bool, **more: bool
) -> RecordsBackend:
    name, options = chosen["backend"], {**_options(chosen), **more}
    connect = _factory(name, options)
    try:
        records = connect(endpoint, chosen["run_id"], agent, **options)
    except OSError as error:
        raise StoreError(f"rendezvous.backend {name}: {endpoint} can't be reached: {error}") from error
    return RecordsBackend(f"{name} at {endpoint}", records, StateCopies(paths))


@contextlib.contextmanager
def _quiet_torch() -> Iterator[None]:
    """torch, if it is imported here, will not tell on standard error, at length, what it raises as well."""
    before = os.environ.get(_TORCHS_VOICE)
    os.environ.setdefault(_TORCHS_VOICE, "FATAL")
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TORCHS_VOICE]


def _factory(name: str, options: Collection[str]) -> Connect:
    """What connects to the backend ``name`` with ``options``; ConfigError if it is not there or does not take them."""
    connect = _found(name)
    taken = inspect.signature(connect).parameters
    for option in options:
        if option not in taken:
            raise ConfigError(
                f"rendezvous.backend is {name}, which has no {option}; leave rendezvous.{option} out, or name another "
                "backend, such as etcd"
            )
    return connect


def _found(name: str) -> Connect:
    if name in _OURS:
        module, _, function = _OURS[name].partition(":")
        with _quiet_torch():
            found: Connect = getattr(import_module(module), function)
        return found
    for point in entry_points(group=GROUP, name=name):
        theirs: Connect = point.load()
        return theirs
    raise ConfigError(f"rendezvous.backend is {name!r}; there are {', '.join(backends())}")
