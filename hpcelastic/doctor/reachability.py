"""Reachability between nodes by TCP and UDP: each node starts an echo server and connects to those of other nodes."""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpcelastic.network.sockets import bind_pair

_MAX_ALL_PAIRS = 16
"""Up to this number of nodes, each node checks every other. With more, it checks its neighbours in a ring, and the
first node and all others check each other."""

_TIMEOUT = 3.0
"""Seconds for one answer."""

_MAX_BYTES = 64


@dataclass(frozen=True)
class EchoAddress:
    """The address and the ports of an echo server."""

    address: str
    tcp: int
    udp: int


@dataclass(frozen=True)
class Reachability:
    """The result for one peer: an error message for each protocol, empty if the peer answered."""

    rank: int
    tcp: str = ""
    udp: str = ""


def peers(rank: int, count: int) -> list[int]:
    """Return the ranks that the node ``rank`` of ``count`` checks."""
    if count <= _MAX_ALL_PAIRS:
        return [other for other in range(count) if other != rank]
    hub = range(count) if rank == 0 else [0]
    return sorted({(rank + 1) % count, (rank - 1) % count, *hub} - {rank})


class EchoServer:
    """A port of this node, one of ``ports``, that echoes every message by TCP and UDP until the server is closed.

    Raises OSError if no port is free.
    """

    def __init__(self, address: str, ports: Sequence[int] = ()) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._udp, self._tcp = bind_pair(family, ports, address)
        self._stop, self._stopped = socket.socketpair()
        self.address = EchoAddress(address, self._tcp.getsockname()[1], self._udp.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, name="echo server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.close()
        self._thread.join(_TIMEOUT)
        for one in (self._tcp, self._udp, self._stopped):
            one.close()

    def _serve(self) -> None:
        while True:
            ready = select.select([self._tcp, self._udp, self._stopped], [], [])[0]
            if self._stopped in ready:
                return
            with contextlib.suppress(OSError):
                if self._udp in ready:
                    message, sender = self._udp.recvfrom(_MAX_BYTES)
                    self._udp.sendto(message, sender)
                if self._tcp in ready:
                    threading.Thread(target=_echo, args=(self._tcp.accept()[0],), daemon=True).start()


def _echo(connection: socket.socket) -> None:
    with contextlib.suppress(OSError), connection:
        connection.settimeout(_TIMEOUT)
        connection.sendall(connection.recv(_MAX_BYTES))


def check_reachability(servers: Mapping[int, EchoAddress], ranks: Iterable[int], message: bytes) -> list[Reachability]:
    """Connect to the echo servers of ``ranks`` in parallel, and send ``message``."""
    found: dict[int, Reachability] = {}

    def check(rank: int) -> None:
        found[rank] = Reachability(rank, _check_tcp(servers[rank], message), _check_udp(servers[rank], message))

    threads = [threading.Thread(target=check, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in sorted(found)]


def _check_tcp(server: EchoAddress, message: bytes) -> str:
    try:
        with socket.create_connection((server.address, server.tcp), _TIMEOUT) as connection:
            connection.sendall(message)
            return "" if connection.recv(_MAX_BYTES) == message else "another program answers"
    except OSError as error:
        return error.strerror or str(error)


def _check_udp(server: EchoAddress, message: bytes) -> str:
    """Send the message up to three times, because a datagram may be lost."""
    family = socket.AF_INET6 if ":" in server.address else socket.AF_INET
    deadline = time.monotonic() + _TIMEOUT
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as client:
            client.connect((server.address, server.udp))
            client.settimeout(_TIMEOUT / 3)
            while time.monotonic() < deadline:
                client.send(message)
                with contextlib.suppress(TimeoutError):
                    return "" if client.recv(_MAX_BYTES) == message else "another program answers"
    except OSError as error:
        return error.strerror or str(error)
    return "no answer"
