import errno
import select
import socket
import subprocess
import sys

import pytest

from hpcelastic.network import sockets
from tests.filesystems.availability import require
from tests.network.namespaces import why_no_namespaces


@pytest.mark.parametrize(
    ("address", "family"),
    [
        ("10.0.0.1", socket.AF_INET),
        ("::1", socket.AF_INET6),
        ("2001:db8::7", socket.AF_INET6),
        ("", None),
        ("localhost", None),
        ("node-1", None),
        ("127.1", None),
        ("fe80::1%eth0", None),
        ("10.0.0.1\0", None),
        ("10.0.0.256", None),
    ],
)
def test_only_numbers_are_addresses(address: str, family: socket.AddressFamily | None) -> None:
    assert sockets.family(address) is family


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_sending_to_an_invalid_port_is_an_error(port: int) -> None:
    assert not sockets.valid_endpoint("127.0.0.1", port)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_one_port_serves_udp_and_tcp(family: socket.AddressFamily) -> None:
    datagram, stream = sockets.bind_pair(family)
    with datagram, stream:
        assert datagram.getsockname()[1] == stream.getsockname()[1] > 0
        assert not stream.get_inheritable(), "it is passed on by number only"


def test_a_port_that_is_in_use_for_udp_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, stream = sockets.bind_pair(socket.AF_INET)
    stream.close()  # so the port is in use for UDP, and free for TCP
    with taken:
        port, bound = taken.getsockname()[1], sockets._bound
        tried: list[int] = []

        def first_the_taken_one(
            kind: socket.AddressFamily, what: socket.SocketKind, address: str, wanted: int
        ) -> socket.socket:
            tried.append(wanted)
            return bound(kind, what, address, port if len(tried) == 1 else wanted)

        monkeypatch.setattr(sockets, "_bound", first_the_taken_one)
        datagram, stream = sockets.bind_pair(socket.AF_INET)
        with datagram, stream:
            assert stream.getsockname()[1] != port and len(tried) == 4


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_refusal_by_the_kernel_is_recognized(family: socket.AddressFamily, address: str) -> None:
    datagram, stream = sockets.bind_pair(family)
    port = stream.getsockname()[1]
    datagram.close()
    stream.close()
    sock, _ = sockets.connect(address, port)
    with sock:
        assert select.select([], [sock], [], 20)[1]
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) > 0
        assert sockets.refused_by_kernel(sock)


def test_a_call_without_an_answer_proves_nothing() -> None:
    with socket.socket() as sock:
        assert not sockets.refused_by_kernel(sock)


def test_a_kernel_without_this_information_proves_nothing() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        assert not sockets.refused_by_kernel(sock)


def test_a_rejection_by_a_firewall_is_not_a_refusal() -> None:
    require(why_no_namespaces())
    command = ["unshare", "--net", sys.executable, "-m", "tests.network.unreachable"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["ECONNREFUSED False", "ECONNREFUSED True"], done.stderr


def test_the_first_free_port_of_a_range_is_used() -> None:
    first, _ = bound = sockets.bind_pair(socket.AF_INET)
    number = first.getsockname()[1]
    try:
        with pytest.raises(OSError, match=f"no port is free; network.ports is {number}-{number}"):
            sockets.bind_pair(socket.AF_INET, range(number, number + 1))
    finally:
        for each in bound:
            each.close()
    datagram, stream = sockets.bind_pair(socket.AF_INET, range(number, number + 1))
    assert datagram.getsockname()[1] == stream.getsockname()[1] == number
    datagram.close()
    stream.close()


def test_each_port_of_a_range_is_tried_once() -> None:
    tried: list[int] = []

    def listen(port: int) -> int:
        tried.append(port)
        raise OSError(errno.EADDRINUSE, "taken")

    with pytest.raises(OSError, match="no port is free"):
        sockets.at_free_port(listen, range(7, 12))
    assert sorted(tried) == [7, 8, 9, 10, 11]


def test_another_error_is_not_tried_again() -> None:
    tried: list[int] = []

    def listen(port: int) -> int:
        tried.append(port)
        raise PermissionError(errno.EACCES, "a port of the system")

    with pytest.raises(PermissionError):
        sockets.at_free_port(listen, range(7, 12))
    assert len(tried) == 1
