"""The choice of a run's backend, and the connection to it.

An agent opens the backend that its settings name (`open_agent_backend`). The first agent, or the program that prepares
the run, records the backend in the run's directory. Readers open the recorded backend: once (`open_backend`), or again
and again (`RunReader`). Each backend is closed by the object that opened it.

The backend of a server is built from a few operations on records (`hpcelastic.backends.records`). An entry point adds a
backend for another server:

    [project.entry-points."hpcelastic.backends"]
    mine = "my_package.module:connect"

``connect(endpoint: str, run_id: str, agent: bool)`` returns `hpcelastic.backends.records.Records`. ``agent`` is True
for an agent of the run, which may serve, and False for a reader. ``connect`` may have further parameters with the names
of rendezvous settings (``prefix``, ``cacert``, ``cert``, ``key``). It receives them if they are set. A setting that
``connect`` does not accept raises ConfigError.
"""

import contextlib
import inspect
import os
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcelastic.backends.backend import AnyLease, AnyObserver, Backend
from hpcelastic.backends.files import FileBackend
from hpcelastic.backends.records import Records, RecordsBackend
from hpcelastic.backends.server_address import read_address
from hpcelastic.backends.state_copies import StateCopies
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol.settings import FILE, PREFIX, Expiry, RendezvousSettings
from hpcelastic.protocol.state import Member
from hpcelastic.storage import files
from hpcelastic.storage.leases import Lease
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import FIRST, Version

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENTRY_POINT_GROUP = "hpcelastic.backends"
"""The group of the entry points that add backends."""

_OPTION_DEFAULTS = {"prefix": PREFIX, "cacert": "", "cert": "", "key": ""}
"""The settings of a connection to a server, with their defaults."""

_CHOICE_KEYS = ("backend", "endpoint", "run_id", *_OPTION_DEFAULTS)
"""The recorded settings of a run's backend. Options with their default values are not recorded."""

_TORCH_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
"""An environment variable that torch reads at import. Workers must not inherit our value of it."""


class LastStateBackend:
    """A read-only backend: the newest copy of the state of a run that is kept in a server."""

    def __init__(self, copies: StateCopies, copy: Version) -> None:
        self.root, self.where, self._version = copies.root, copies.where, copy

    def register(self, writer: str) -> "LastStateBackend":
        return self

    def read(self) -> Version:
        return self._version

    def open(self, number: int) -> Version:
        return self._version

    def assume(self, number: int) -> None: ...

    def commit(self, after: int, value: Any) -> bool:
        raise self._unreachable_error()

    def lock(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def lease(self, node: str) -> AnyLease:
        raise self._unreachable_error()

    def observer(self, expiry: Expiry, clock: Callable[[], float]) -> AnyObserver:
        raise self._unreachable_error()

    def leases(self, node_name: str = "", *, processes: bool = False) -> dict[str, Lease]:
        return {}

    def first_ready(self, count: int) -> tuple[int, list[Member]]:
        return 0, []

    def remove_leases(self, nodes: Collection[str]) -> None: ...

    def close(self) -> None: ...

    def _unreachable_error(self) -> StoreError:
        return StoreError(
            f"{self.where}: the server that keeps this run can't be reached, or has no record of it; check that the "
            "server runs and that this node reaches it"
        )


Connect = Callable[..., Records]


def open_backend(paths: RunPaths) -> Backend:
    """Open the backend that a run's directory names, for a reader. The caller closes it.

    If the server can't be reached or has no record of the run, return the state that was copied to the directory.
    Raises StoreError if there is no copy.
    """
    if files.names(paths.register):  # a run in a server has no versions here
        return FileBackend(paths)
    choice, copies = _read_choice(paths), StateCopies(paths)
    copy = copies.read()
    if choice is None:
        return LastStateBackend(copies, copy) if copy else FileBackend(paths)
    try:
        backend = _connect_reader(paths, choice)
    except StoreError:
        if copy is None:
            raise
        return LastStateBackend(copies, copy)
    if copy is None or _has_run(backend):
        return backend
    backend.close()
    return LastStateBackend(copies, copy)


def open_agent_backend(
    paths: RunPaths, run_id: str, settings: RendezvousSettings, address: str = "", is_host: bool | None = None
) -> Backend:
    """Open the backend that ``settings`` name for the run in ``paths``, for an agent of the run, which closes it.

    ``address`` is the server's address if ``settings`` name none. ``is_host`` says whether this process serves torch's
    store; None lets torch decide. Raises ConfigError if there is no such backend or the run is kept in another one,
    StoreError if the server can't be reached.
    """
    if settings.backend == FILE and files.exists(paths.register / FIRST):  # a run in a server has no versions here
        return FileBackend(paths)
    wanted = _choice_document(run_id, settings)
    choice = _read_choice(paths)
    if settings.backend != FILE and choice is None and not files.names(paths.register):
        record_backend(paths, run_id, settings)
        choice = files.read_json(paths.backend)
    if settings.backend == FILE and choice is None:
        return FileBackend(paths)
    if choice is not None and {key: choice[key] for key in _CHOICE_KEYS if key in choice} == wanted:
        more = {} if is_host is None else {"is_host": is_host}
        return _connect(paths, wanted, address or settings.endpoint, agent=True, **more)
    recorded, requested = (_describe_choice(choice) if choice else FILE), _describe_choice(wanted)
    raise ConfigError(
        f"{paths.root}: the rendezvous of this run is kept in {recorded}, not in {requested}; every agent of a run "
        "must name the same backend and endpoint: use those, or use another run id"
    )


class RunReader:
    """A run for a process that reads it repeatedly and is no agent of it. It keeps the connection to the run's server.

    Several threads may use it.
    """

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self._server: RecordsBackend | None = None
        """The open backend of a run in a server. Any other backend costs nothing to open."""

    @property
    def name(self) -> str:
        """The name of the run's directory, for messages."""
        return self.paths.root.name

    def backend(self) -> Backend:
        """Return the backend for one look at the run. The caller does not close it.

        The backend of the last look is opened again if its server does not answer or has no record of the run: the
        server may have moved to another address. Raises StoreError as `open_backend` does.
        """
        server = self._server
        if server is not None and _has_run(server):
            return server
        backend = open_backend(self.paths)
        # The previous connection is not closed, because another thread may be using it.
        self._server = backend if isinstance(backend, RecordsBackend) else None
        return backend

    def close(self) -> None:
        """Close the connection, which no thread uses any more. Another look opens it again."""
        server, self._server = self._server, None
        if server is not None:
            server.close()


def record_backend(paths: RunPaths, run_id: str, settings: RendezvousSettings) -> None:
    """Record a run's backend in its directory if none is recorded. Raises ConfigError if there is no such backend."""
    choice = _choice_document(run_id, settings)
    _connect_function(settings.backend, _options_of(choice))
    document = {**choice, "nonce": secrets.token_hex(8)}
    files.publish_new(paths.backend, files.to_json(document))


def backend_names() -> list[str]:
    """Return the names of all available backends."""
    return sorted({FILE, *(point.name for point in _entry_points())})


def run_nonce(paths: RunPaths) -> str:
    """Return the run's nonce. It differs between two runs of the same name."""
    document = _read_choice(paths) or files.read_json(_first_version(paths))
    if not isinstance(document, Mapping) or not isinstance(document.get("nonce"), str):
        raise StoreError(f"{paths.root}: holds no run; HPCELASTIC_RUN_DIR must name the directory of one")
    nonce: str = document["nonce"]
    return nonce


def creation_time(paths: RunPaths) -> float:
    """Return when the run was created, in seconds since the epoch, by the clock of its filesystem.

    Raises OSError or StoreError if there is no run, or its directory cannot be read.
    """
    recorded = paths.backend.name in files.names(paths.backend.parent)
    return (paths.backend if recorded else _first_version(paths)).stat().st_mtime


def _first_version(paths: RunPaths) -> Path:
    """Return the path of the first version of a run. If it is listed, wait until this client sees it.

    The client may remember for half a minute that the name was absent.
    """
    path = paths.register / FIRST
    if path.name in files.names(paths.register):
        files.await_visible(path)
    return path


def _has_run(backend: Backend) -> bool:
    """Return whether the server of ``backend`` answers and has a record of the run."""
    try:
        return backend.register("").read().number > 0
    except StoreError:
        return False


def _read_choice(paths: RunPaths) -> Any:
    """Return the record of the run's backend; None if the run is kept in files.

    The name is looked up in a listing, because an NFS client caches that a name was absent.
    """
    recorded = paths.backend.name in files.names(paths.backend.parent)
    return files.read_json(paths.backend) if recorded else None


def _describe_choice(choice: Mapping[str, str]) -> str:
    where = f" at {choice['endpoint']}" if choice["endpoint"] else ""
    options = "".join(f", {key} {value}" for key, value in _options_of(choice).items())
    return f"{choice['backend']}{where}{options}"


def _choice_document(run_id: str, settings: RendezvousSettings) -> dict[str, str]:
    options = {name: getattr(settings, name) for name in _OPTION_DEFAULTS}
    given = {name: value for name, value in options.items() if value != _OPTION_DEFAULTS[name]}
    return {"backend": settings.backend, "endpoint": settings.endpoint, "run_id": run_id, **given}


def _options_of(choice: Mapping[str, str]) -> dict[str, str]:
    return {name: choice[name] for name in _OPTION_DEFAULTS if name in choice}


def _connect_reader(paths: RunPaths, choice: Mapping[str, str]) -> RecordsBackend:
    """Connect to the recorded backend as a reader."""
    endpoint = choice["endpoint"]
    if RendezvousSettings(backend=choice["backend"], endpoint=endpoint).discovers_endpoint:
        address = read_address(paths)
        if address is None:
            raise StoreError(f"{paths.root}: no server keeps this run now")
        endpoint = address.address
    return _connect(paths, choice, endpoint, agent=False)


def _connect(paths: RunPaths, choice: Mapping[str, str], endpoint: str, *, agent: bool, **more: bool) -> RecordsBackend:
    name, options = choice["backend"], {**_options_of(choice), **more}
    connect = _connect_function(name, options)
    try:
        records = connect(endpoint, choice["run_id"], agent, **options)
    except OSError as error:
        raise StoreError(f"rendezvous.backend {name}: {endpoint} can't be reached: {error}") from error
    return RecordsBackend(f"{name} at {endpoint}", records, StateCopies(paths))


@contextlib.contextmanager
def _quiet_torch() -> Iterator[None]:
    """Keep torch, if it is imported here, from logging at length the errors that it also raises."""
    before = os.environ.get(_TORCH_LOG_LEVEL)
    os.environ.setdefault(_TORCH_LOG_LEVEL, "FATAL")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_TORCH_LOG_LEVEL, None)  # another thread may have removed it


def _connect_function(name: str, options: Collection[str]) -> Connect:
    """Return the ``connect`` of the backend ``name``; ConfigError if it is missing or does not accept ``options``."""
    connect = _load_connect_function(name)
    accepted = inspect.signature(connect).parameters
    for option in options:
        if option not in accepted:
            raise ConfigError(
                f"rendezvous.backend is {name}, which has no {option}; leave rendezvous.{option} out, or name another "
                "backend, such as etcd"
            )
    return connect


def _load_connect_function(name: str) -> Connect:
    for point in _entry_points(name):
        with _quiet_torch():  # imported at first use, because most agents need no server
            connect: Connect = point.load()
        return connect
    raise ConfigError(f"rendezvous.backend is {name!r}; there are {', '.join(backend_names())}")


def _entry_points(name: str | None = None) -> "EntryPoints":
    from importlib.metadata import entry_points  # here, because most agents need no server

    found = entry_points(group=ENTRY_POINT_GROUP)
    return found if name is None else found.select(name=name)
