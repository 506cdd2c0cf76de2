"""Whether nodes reach each other's ports, by TCP and by UDP: each opens a door, and knocks at those of others."""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_ALL_PAIRS = 16
"""Up to so many nodes everybody tries everybody; among more, its neighbours in a ring, and the first."""

_PATIENCE = 3.0
"""Seconds for which one answer is waited for."""

_LONGEST = 64


@dataclass(frozen=True)
class Address:
    """Where a node's door is."""

    address: str
    tcp: int
    udp: int


@dataclass(frozen=True)
class Knock:
    """What came of knocking at one door: empty where it was answered, else what happened instead."""

    rank: int
    tcp: str = ""
    udp: str = ""


def peers(rank: int, count: int) -> list[int]:
    """Whom the node ``rank`` of ``count`` tries to reach."""
    if count <= _ALL_PAIRS:
        return [other for other in range(count) if other != rank]
    hub = range(count) if rank == 0 else [0]
    return sorted({(rank + 1) % count, (rank - 1) % count, *hub} - {rank})


class Door:
    """Two ports of this node at which whatever is said is said back, until it is closed."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._tcp = socket.socket(family, socket.SOCK_STREAM)
        self._udp = socket.socket(family, socket.SOCK_DGRAM)
        self._stop, self._stopped = socket.socketpair()
        self._tcp.bind((address, 0))
        self._udp.bind((address, 0))
        self._tcp.listen(128)
        self.at = Address(address, self._tcp.getsockname()[1], self._udp.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, name="door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.close()
        self._thread.join(_PATIENCE)
        for one in (self._tcp, self._udp, self._stopped):
            one.close()

    def _serve(self) -> None:
        while True:
            ready = select.select([self._tcp, self._udp, self._stopped], [], [])[0]
            if self._stopped in ready:
                return
            with contextlib.suppress(OSError):
                if self._udp in ready:
                    word, whence = self._udp.recvfrom(_LONGEST)
                    self._udp.sendto(word, whence)
                if self._tcp in ready:
                    threading.Thread(target=_echo, args=(self._tcp.accept()[0],), daemon=True).start()


def _echo(connection: socket.socket) -> None:
    with contextlib.suppress(OSError), connection:
        connection.settimeout(_PATIENCE)
        connection.sendall(connection.recv(_LONGEST))


def knock(doors: Mapping[int, Address], ranks: Iterable[int], word: bytes) -> list[Knock]:
    """Knock at the doors of ``ranks``, all at once."""
    found: dict[int, Knock] = {}

    def one(rank: int) -> None:
        found[rank] = Knock(rank, _by_tcp(doors[rank], word), _by_udp(doors[rank], word))

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in sorted(found)]


def _by_tcp(door: Address, word: bytes) -> str:
    try:
        with socket.create_connection((door.address, door.tcp), _PATIENCE) as connection:
            connection.sendall(word)
            return "" if connection.recv(_LONGEST) == word else "somebody else answers"
    except OSError as error:
        return error.strerror or str(error)


def _by_udp(door: Address, word: bytes) -> str:
    """Three times: a datagram may be lost."""
    family = socket.AF_INET6 if ":" in door.address else socket.AF_INET
    deadline = time.monotonic() + _PATIENCE
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((door.address, door.udp))
            probe.settimeout(_PATIENCE / 3)
            while time.monotonic() < deadline:
                probe.send(word)
                with contextlib.suppress(TimeoutError):
                    return "" if probe.recv(_LONGEST) == word else "somebody else answers"
    except OSError as error:
        return error.strerror or str(error)
    return "no answer"
