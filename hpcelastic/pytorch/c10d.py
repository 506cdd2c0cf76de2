"""Records of a run in torch's own stores: a TCPStore that one agent serves, or a FileStore.

``HOST:PORT`` is a TCPStore at that host: the agent that runs there serves it, the others connect; it must outlive all
others, which is what the files of the run's directory do without. ``file:PATH`` is a FileStore.
"""

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]  # where torch has them

from hpcelastic.agent.address import interfaces
from hpcelastic.backends.records import Record
from hpcelastic.errors import ConfigError, StoreError

_PORT = 29400
"""torchrun's."""

_TIMEOUT = timedelta(seconds=10)
_CONNECT = timedelta(seconds=60)
"""How long an agent waits for the one that serves."""

_LOOK = timedelta(seconds=3)
"""How long one attempt to connect may take."""

_AGAIN = 0.2
"""Seconds between two attempts."""

_SILENT = 3.0
"""Seconds after which an agent that waits says so."""

_PARTING = 15.0
"""Seconds for which who serves waits for the others to have seen the end."""

_INDEX = "index"


class StoreRecords:
    """Records in ``store``. Its keys are listed in one of them, for not every store of torch can list its own."""

    def __init__(self, store: Store, run_id: str, *, agent: bool, serves: bool = False) -> None:
        self._store, self._prefix, self._agent, self._serves = store, f"hpcelastic/{run_id}/", agent, serves
        self._indexed: set[str] = set()
        if agent:
            self._add("open")

    def get(self, key: str) -> Record | None:
        with self._reached():
            text = self._held(key)
        return None if text is None else Record(text, text)

    def compare_set(self, key: str, token: Any, text: str) -> bool:
        with self._reached():
            if token is None and self._held(key) is not None:
                return False
            return bool(self._store.compare_set(self._prefix + key, token or "", text) == text.encode())

    def set(self, key: str, text: str) -> None:
        with self._reached():
            self._store.set(self._prefix + key, text)
            while key not in self._indexed:
                held = self._held(_INDEX)
                keys = set(json.loads(held or "[]"))
                wanted = json.dumps(sorted({*keys, key}))
                if key in keys or self._store.compare_set(self._prefix + _INDEX, held or "", wanted) == wanted.encode():
                    self._indexed.add(key)

    def all(self, prefix: str) -> dict[str, str]:
        with self._reached():
            keys = [key for key in json.loads(self._held(_INDEX) or "[]") if key.startswith(prefix)]
            return {key: self._store.get(self._prefix + key).decode() for key in keys}

    def close(self) -> None:
        """Say that we are gone; who serves goes last."""
        if not self._agent:
            return
        deadline = time.monotonic() + _PARTING
        with contextlib.suppress(StoreError):
            self._add("gone")
            while self._serves and self._count("gone") < self._count("open") and time.monotonic() < deadline:
                time.sleep(0.05)

    def _held(self, key: str) -> str | None:
        name = self._prefix + key
        text: str | None = self._store.get(name).decode() if self._store.check([name]) else None
        return text

    def _add(self, key: str) -> None:
        with self._reached():
            self._store.add(self._prefix + key, 1)

    def _count(self, key: str) -> int:
        with self._reached():
            return int(self._store.add(self._prefix + key, 0))

    @contextlib.contextmanager
    def _reached(self) -> Any:
        try:
            yield
        except (RuntimeError, OSError) as error:  # torch's DistErrors are RuntimeErrors
            raise StoreError(f"torch's store does not answer: {error}") from error


def connect(endpoint: str, run_id: str, agent: bool, *, is_host: bool | None = None) -> StoreRecords:
    """The records of a run in the store at ``endpoint``, served by this process if it is the ``agent`` to do so.

    That is the agent of the machine that ``endpoint`` names; where ``is_host`` is given, that decides.
    """
    if endpoint.startswith("file:"):
        # -1: nobody may remove the file as the last one, for another may come.
        return StoreRecords(FileStore(endpoint.removeprefix("file:"), -1), run_id, agent=agent)
    host, port = _parsed(endpoint)
    if not agent:
        _ask(host, port, _LOOK)
        return StoreRecords(_client(host, port), run_id, agent=False)
    with _told_of_the_wait(host, port):
        if _is_here(host) if is_host is None else is_host:
            with contextlib.suppress(RuntimeError, OSError):  # another agent of this machine serves it
                return StoreRecords(_tcp_store(host, port, serves=True, wait=_TIMEOUT), run_id, agent=True, serves=True)
        _await_server(host, port)
        return StoreRecords(_client(host, port), run_id, agent=True)


def _parsed(endpoint: str) -> tuple[str, int]:
    host, colon, port = endpoint.rpartition(":")
    if not colon or "]" in port:
        host, port = endpoint, str(_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"rendezvous.endpoint is {endpoint!r}; write HOST:PORT, such as node1:{_PORT}, or file:PATH")
    return host, int(port)


def _is_here(host: str) -> bool:
    """Whether a name or an address is this machine's."""
    if host in ("localhost", socket.gethostname(), socket.getfqdn()):
        return True
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return not found.isdisjoint(one.address for one in interfaces())


@contextlib.contextmanager
def _told_of_the_wait(host: str, port: int) -> Iterator[None]:
    """Tell the user, if the block takes long, what this agent waits for."""
    limit = f"for up to {_CONNECT.total_seconds():g} s"
    text = f"waiting {limit} for the store at {host}:{port}, which the agent on {host} serves"
    timer = threading.Timer(_SILENT, _tell, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _await_server(host: str, port: int) -> None:
    """Return once a server listens there; StoreError if that takes too long."""
    deadline, unresolved = time.monotonic() + _CONNECT.total_seconds(), False
    while True:
        try:
            return _ask(host, port, _LOOK)
        except StoreError as error:
            if time.monotonic() > deadline:
                raise
            if isinstance(error.__cause__, socket.gaierror) and not unresolved:
                unresolved = True  # the name may be new, and still on its way to this node
                _tell(f"{host} does not resolve ({error.__cause__.strerror}); trying again; check --rdzv-endpoint")
        time.sleep(_AGAIN)


def _tell(text: str) -> None:
    print(f"hpcelastic agent: {text}", file=sys.stderr, flush=True)


def _ask(host: str, port: int, limit: timedelta) -> None:
    """StoreError if nobody listens there; torch would say so at length, on standard error."""
    try:
        socket.create_connection((host, port), limit.total_seconds()).close()
    except OSError as error:
        why = f"{host}:{port}: no agent serves the store there ({error}); does one run on {host}?"
        raise StoreError(why) from error


def _client(host: str, port: int) -> TCPStore:
    try:
        return _tcp_store(host, port, serves=False, wait=_TIMEOUT)
    except (RuntimeError, OSError) as error:
        raise StoreError(f"{host}:{port}: what listens there is no store of torch ({error})") from error


def _tcp_store(host: str, port: int, *, serves: bool, wait: timedelta) -> TCPStore:
    store = TCPStore(host, port, None, serves, wait, wait_for_workers=False, multi_tenant=True)
    store.set_timeout(_TIMEOUT)
    return store
