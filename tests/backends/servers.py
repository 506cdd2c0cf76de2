"""Servers of a backend in this process. They count the connections to them."""

import pytest

from hpcelastic.backends import connect
from hpcelastic.backends.records import Record
from hpcelastic.errors import StoreError


class Server:
    """The records of runs, by run and key. A server that is not ``up`` does not answer."""

    def __init__(self) -> None:
        self.records: dict[str, dict[str, str]] = {}
        self.up = True
        self.agents = self.readers = 0
        """The connections that were opened, by agents of runs and by readers."""

        self.open = 0
        """The connections that are open."""


class Connection:
    """The `Records` of one run."""

    def __init__(self, server: Server, run_id: str) -> None:
        self._server, self._run_id, self._closed = server, run_id, False

    def get(self, key: str) -> Record | None:
        text = self._texts().get(key)
        return None if text is None else Record(text, text)

    def compare_set(self, key: str, token: str | None, text: str) -> bool:
        texts = self._texts()
        fits = texts.get(key) == token
        if fits:
            texts[key] = text
        return fits

    def set(self, key: str, text: str) -> None:
        self._texts()[key] = text

    def all(self, prefix: str) -> dict[str, str]:
        return {key: text for key, text in self._texts().copy().items() if key.startswith(prefix)}

    def close(self) -> None:
        assert not self._closed
        self._closed = True
        self._server.open -= 1

    def _texts(self) -> dict[str, str]:
        assert not self._closed
        if not self._server.up:
            raise StoreError("the server does not answer")
        return self._server.records.setdefault(self._run_id, {})


class Servers(dict[str, Server]):
    """Servers by address. Each is there from its first use on."""

    def __missing__(self, address: str) -> Server:
        self[address] = Server()
        return self[address]

    def connect(self, endpoint: str, run_id: str, agent: bool) -> Connection:
        """Connect to the server at ``endpoint``, as an entry point does."""
        server = self[endpoint]
        if not server.up:
            raise ConnectionRefusedError("connection refused")
        server.open += 1
        server.agents += agent
        server.readers += not agent
        return Connection(server, run_id)


def servers_of_every_backend(monkeypatch: pytest.MonkeyPatch) -> Servers:
    """Let every backend but ``file`` be one of these servers."""
    servers = Servers()
    monkeypatch.setattr(connect, "_load_connect_function", lambda name: servers.connect)
    return servers
