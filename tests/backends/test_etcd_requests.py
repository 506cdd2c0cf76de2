"""Endpoints of etcd clusters, and members that do not answer as they should."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from hpcelastic.backends.etcd import EtcdV2, EtcdV3, connect, connect_v2
from hpcelastic.backends.etcd_server import EtcdServer
from hpcelastic.errors import ConfigError, StoreError

Connect = Callable[[str, str, bool], EtcdV2 | EtcdV3]


@contextlib.contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """The address of a member that sends ``reply`` and closes the connection, for each request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("version", [connect, connect_v2])
@pytest.mark.parametrize("status", ["503 Service Unavailable", "404 Not Found"])
def test_an_error_whose_text_is_cut_off_is_an_error_of_the_server(status: str, version: Connect) -> None:
    reply = f'HTTP/1.1 {status}\r\nContent-Length: 100\r\n\r\n{{"err'.encode()
    error = f"does not answer: HTTP Error {status[:3]}"
    with answering(reply) as endpoint, pytest.raises(StoreError, match=error):
        version(endpoint, "run", True).get("state")


def test_spaces_around_the_members_of_an_endpoint_are_ignored(etcd: EtcdServer) -> None:
    for endpoint in (f" {etcd.endpoint}", f"127.0.0.1:1, {etcd.endpoint} "):
        assert connect(endpoint, "no-such-run", True).get("state") is None


@pytest.mark.parametrize("endpoint", ["[::1", "http://[::1:2379", "n1:2379,", "n1:x"])
def test_no_endpoint(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="write HOST:PORT of an etcd server"):
        connect(endpoint, "run", True)
