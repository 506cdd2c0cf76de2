"""Records of a run in torch's own stores: a TCPStore that one agent serves, or a FileStore.

``HOST:PORT`` is a TCPStore: the agent on that host serves it and the other agents connect. That agent must outlive all
others; with files in the run's directory, no agent has to. ``file:PATH`` is a FileStore.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]  # if torch was built with them

from hpcelastic.agent.address import interfaces
from hpcelastic.backends.records import Record
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.network import sockets
from hpcelastic.storage.bounded import Hang, bounded

T = TypeVar("T")

_DEFAULT_PORT = 29400
"""The default port of torchrun."""

_STORE_TIMEOUT = timedelta(seconds=10)
_SERVER_TIMEOUT = timedelta(seconds=60)
"""Maximum time that an agent waits for the agent that serves the store."""

_CONNECT_TIMEOUT = timedelta(seconds=3)
"""Maximum time of one attempt to connect."""

_RETRY_INTERVAL = 0.2
"""Seconds between two attempts to connect."""

_MESSAGE_DELAY = 3.0
"""Seconds after which a waiting agent prints a message."""

_CLOSE_TIMEOUT = 15.0
"""Seconds for which the agent that serves the store waits until the other agents have closed it."""

_INDEX_KEY = "index"


@dataclass
class _Connection:
    """A client of a store. An operation that takes too long goes on in its thread, and keeps its connection."""

    store: Store
    indexed: set[str] = field(default_factory=set)
    """Keys that the record of all keys has."""

    broken: bool = False
    """Whether an operation has failed. After an error, torch's client cannot be used any more."""


class StoreRecords:
    """Records in ``store``. One record lists the keys, because not every store of torch can list its own keys."""

    def __init__(
        self,
        store: Store,
        run_id: str,
        *,
        agent: bool,
        is_server: bool = False,
        reconnect: Callable[[], Store] | None = None,
    ) -> None:
        self._connection, self._reconnect = _Connection(store), reconnect
        self._prefix, self._agent, self._is_server = f"hpcelastic/{run_id}/", agent, is_server
        self._written: dict[str, str] = {}
        """The texts that `set` has written, by key."""

        if agent:
            self._add("open")

    def get(self, key: str) -> Record | None:
        text = self._answer(lambda connection: self._read(connection.store, key))
        return None if text is None else Record(text, text)  # the token is the text itself

    def compare_set(self, key: str, token: Any, text: str) -> bool:
        def change(connection: _Connection) -> bool:
            store = connection.store
            if token is None and self._read(store, key) is not None:
                return False
            return bool(store.compare_set(self._prefix + key, token or "", text) == text.encode())

        return self._answer(change)

    def set(self, key: str, text: str) -> None:
        def write(connection: _Connection) -> None:
            store = connection.store
            self._replace(connection, key, text)
            while key not in connection.indexed:
                old = self._read(store, _INDEX_KEY) or ""
                keys = set(json.loads(old or "[]"))
                new = json.dumps(sorted({*keys, key}))
                if key in keys or store.compare_set(self._prefix + _INDEX_KEY, old, new) == new.encode():
                    connection.indexed.add(key)

        self._answer(write)

    def _replace(self, connection: _Connection, key: str, text: str) -> None:
        """Set ``key`` to ``text`` in place of the text that this object has written before.

        An operation that has taken too long may be executed later than the next one. Then it changes nothing.
        """
        expected = self._written.get(key, "")
        while True:
            if connection.broken:
                raise StoreError("another operation has failed")
            if connection.store.compare_set(self._prefix + key, expected, text) == text.encode():
                self._written[key] = text
                return
            expected = self._read(connection.store, key) or ""

    def all(self, prefix: str) -> dict[str, str]:
        def read(connection: _Connection) -> dict[str, str]:
            store = connection.store
            keys = [key for key in json.loads(self._read(store, _INDEX_KEY) or "[]") if key.startswith(prefix)]
            texts = store.multi_get([self._prefix + key for key in keys])  # in one request
            return {key: text.decode() for key, text in zip(keys, texts, strict=True)}

        return self._answer(read)

    def close(self) -> None:
        """Close the store. The agent that serves it waits until the other agents have closed it."""
        if not self._agent:
            return
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        with contextlib.suppress(StoreError):
            self._add("gone")
            while self._is_server and self._count("gone") < self._count("open") and time.monotonic() < deadline:
                time.sleep(0.05)

    def _read(self, store: Store, key: str) -> str | None:
        name = self._prefix + key
        text: str | None = store.get(name).decode() if store.check([name]) else None
        return text

    def _add(self, key: str) -> None:
        self._answer(lambda connection: connection.store.add(self._prefix + key, 1))

    def _count(self, key: str) -> int:
        return self._answer(lambda connection: int(connection.store.add(self._prefix + key, 0)))

    def _answer(self, operation: Callable[[_Connection], T]) -> T:
        """Return the result of an operation on the store. Raises StoreError if it fails, or takes too long."""
        connection = self._connection
        if connection.broken:
            # Another process may serve the store now. A store in this process, or in a file, can be used again.
            store = connection.store if self._reconnect is None else self._reconnect()
            connection = self._connection = _Connection(store)
        try:
            return _in_time(partial(operation, connection))
        except (RuntimeError, OSError, StoreError) as error:  # torch's DistErrors are RuntimeErrors
            connection.broken = True
            raise StoreError(f"torch's store does not answer: {error}") from error


def _in_time(function: Callable[[], T]) -> T:
    """Return the result of ``function``, which uses a store. Raises StoreError if it takes too long.

    torch waits without a limit for the answers to some requests.
    """
    limit = _STORE_TIMEOUT.total_seconds()
    try:
        return bounded(function, limit, "torch's store")
    except Hang as error:
        raise StoreError(f"no answer within {limit:g} s") from error


def connect(endpoint: str, run_id: str, agent: bool, *, is_host: bool | None = None) -> StoreRecords:
    """Return the records of a run in the store at ``endpoint``. ``agent``: this process is an agent of the run.

    An agent serves the store if it runs on the host in ``endpoint``, or as ``is_host`` says if that is given.
    """
    if endpoint.startswith("file:"):
        return StoreRecords(_file_store(Path(endpoint.removeprefix("file:")), agent), run_id, agent=agent)
    host, port = _parse_endpoint(endpoint)
    reconnect = partial(_connected_client, host, port)
    if not agent:
        return StoreRecords(reconnect(), run_id, agent=False, reconnect=reconnect)
    with _report_wait(host, port):
        if _is_local(host) if is_host is None else is_host:
            with contextlib.suppress(RuntimeError, OSError):  # another agent on this machine serves it
                return StoreRecords(
                    _tcp_store(host, port, is_server=True, wait=_STORE_TIMEOUT), run_id, agent=True, is_server=True
                )
        _wait_for_server(host, port)
        return StoreRecords(_client(host, port), run_id, agent=True, reconnect=reconnect)


def _file_store(path: Path, agent: bool) -> FileStore:
    """Open the store in a file, which only an agent creates. Raises StoreError."""
    # torch would wait for a missing directory and hold the interpreter. Path.is_dir and Path.exists raise an error for
    # a path in a directory that the user may not enter.
    if not os.path.isdir(path.parent) or os.path.isdir(path):
        raise StoreError(f"rendezvous.endpoint is file:{path}; name a file in a directory that exists on this node")
    if not agent and not os.path.exists(path):
        raise StoreError(f"{path}: no agent has created this store")
    try:
        # -1 (no fixed number of users): no process removes the file when it closes, because another may connect later.
        return FileStore(str(path), -1)
    except (RuntimeError, OSError) as error:
        raise StoreError(f"{path}: can't be used as a store of torch ({error})") from error


def _parse_endpoint(endpoint: str) -> tuple[str, int]:
    host, colon, port = endpoint.rpartition(":")
    if not colon or "]" in port or sockets.family(endpoint) is socket.AF_INET6:
        host, port = endpoint, str(_DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"rendezvous.endpoint is {endpoint!r}; write HOST:PORT, such as node1:{_DEFAULT_PORT}, or file:PATH"
        )
    return host, int(port)


def _is_local(host: str) -> bool:
    """Return whether a name or an address belongs to this machine."""
    if host in ("localhost", socket.gethostname(), socket.getfqdn()):
        return True
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return not addresses.isdisjoint(interface.address for interface in interfaces())


@contextlib.contextmanager
def _report_wait(host: str, port: int) -> Iterator[None]:
    """Print a message for the user if the block takes long."""
    limit = f"for up to {_SERVER_TIMEOUT.total_seconds():g} s"
    text = f"waiting {limit} for the store at {host}:{port}, which the agent on {host} serves"
    timer = threading.Timer(_MESSAGE_DELAY, _report, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _wait_for_server(host: str, port: int) -> None:
    """Wait until a server listens there. Raises StoreError if that takes too long."""
    deadline, unresolved = time.monotonic() + _SERVER_TIMEOUT.total_seconds(), False
    while True:
        try:
            return _check_server(host, port, _CONNECT_TIMEOUT)
        except StoreError as error:
            if time.monotonic() > deadline:
                raise
            if isinstance(error.__cause__, socket.gaierror) and not unresolved:
                unresolved = True  # the name may be new, so that this node cannot resolve it yet
                _report(f"{host} does not resolve ({error.__cause__.strerror}); trying again; check --rdzv-endpoint")
        time.sleep(_RETRY_INTERVAL)


def _report(text: str) -> None:
    print(f"hpcelastic agent: {text}", file=sys.stderr, flush=True)


def _check_server(host: str, port: int, limit: timedelta) -> None:
    """Raise StoreError if no server listens there. torch would print a long message to standard error instead."""
    try:
        socket.create_connection((host, port), limit.total_seconds()).close()
    except OSError as error:
        why = f"{host}:{port}: no agent serves the store there ({error}); does one run on {host}?"
        raise StoreError(why) from error


def _connected_client(host: str, port: int) -> TCPStore:
    """Connect to a server that listens already. Raises StoreError."""
    _check_server(host, port, _CONNECT_TIMEOUT)
    return _client(host, port)


def _client(host: str, port: int) -> TCPStore:
    try:
        return _in_time(lambda: _tcp_store(host, port, is_server=False, wait=_STORE_TIMEOUT))
    except (RuntimeError, OSError, StoreError) as error:
        raise StoreError(f"{host}:{port}: the server there is not a store of torch ({error})") from error


def _tcp_store(host: str, port: int, *, is_server: bool, wait: timedelta) -> TCPStore:
    store = TCPStore(host, port, None, is_server, wait, wait_for_workers=False, multi_tenant=True)
    store.set_timeout(_STORE_TIMEOUT)
    return store
