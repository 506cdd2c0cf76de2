"""Sockets of the network: one port for UDP and TCP, non-blocking connects, and the source of a refusal."""

import contextlib
import errno
import functools
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

_BACKLOG = 1024
"""Connections that the kernel queues until the agent accepts them. Further ones are ignored, not refused."""

_TRIES = 100
_USER_TIMEOUT = 3000  # ms
_LOW_WATER_MARK = 4096
"""Bytes; far more than the heartbeats of a few seconds."""

_SO_MAX_PACING_RATE = 47
"""Source: <asm-generic/socket.h>. TCP paces by itself since Linux 4.13, without a queueing discipline for it."""

_UNLIMITED = 2**64 - 1

_SEGMENTS_IN = struct.Struct("=I")
_SEGMENTS_IN_AT = 140
"""Offset of tcpi_segs_in in struct tcp_info; source: <linux/tcp.h>, since Linux 4.2."""


@functools.lru_cache(maxsize=2**16)  # a leader sends a message to each node of a run, and more than once
def family(address: str) -> socket.AddressFamily | None:
    """Return the family of a numeric address; None for everything else, also for names and scoped addresses."""
    for candidate in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(candidate, address)
            return candidate
    return None


def endpoint(host: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def valid_endpoint(address: str, port: int) -> bool:
    """True if the address is numeric and the port is in range."""
    return 0 < port < 65536 and family(address) is not None


def at_free_port(listen: Callable[[int], T], ports: Sequence[int]) -> T:
    """Return ``listen(port)`` for the first of ``ports``, from a random one on, at which it raises no EADDRINUSE.

    Without ``ports``, the argument is 0, for any port. Raises OSError.
    """
    first, count = int.from_bytes(os.urandom(4), "little"), len(ports)
    for port in (ports[(first + i) % count] for i in range(count)) if ports else [0] * _TRIES:
        try:
            return listen(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    tried = f"network.ports is {ports[0]}-{ports[-1]}" if ports else f"tried {_TRIES}"
    raise OSError(errno.EADDRINUSE, f"no port is free; {tried}")


def bind_pair(
    kind: socket.AddressFamily, ports: Sequence[int] = (), address: str = ""
) -> tuple[socket.socket, socket.socket]:
    """Return a UDP socket and a listening TCP socket with the same port number.

    They have one of ``ports``, by default any, at every address of this machine, or only at ``address``. Raises OSError
    if there is no such port.
    """
    return at_free_port(lambda port: _listening_pair(kind, address, port), ports)


def _listening_pair(kind: socket.AddressFamily, address: str, port: int) -> tuple[socket.socket, socket.socket]:
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(_bound(kind, socket.SOCK_STREAM, address, port))
        datagram = stack.enter_context(_bound(kind, socket.SOCK_DGRAM, address, stream.getsockname()[1]))
        stream.listen(_BACKLOG)
        stack.pop_all()
        return datagram, stream


def datagram_socket(kind: socket.AddressFamily) -> socket.socket:
    """Return a UDP socket for sending."""
    sock = socket.socket(kind, socket.SOCK_DGRAM)
    sock.setblocking(False)
    return sock


def connect(address: str, port: int, source: str = "") -> tuple[socket.socket, int]:
    """Start to connect, from the address ``source`` of this machine if it is given.

    Return the socket, and 0, EINPROGRESS or the errno of the failure. Raises OSError.
    """
    sock = socket.socket(family(address) or socket.AF_INET, socket.SOCK_STREAM)
    try:
        configure(sock)
        if source:
            sock.bind((source, 0))
        return sock, sock.connect_ex((address, port))
    except BaseException:
        sock.close()
        raise


def configure(sock: socket.socket) -> None:
    """Make the socket non-blocking and undelayed, and let it detect a lost or rebooted peer machine within seconds."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT)


def configure_transfer(sock: socket.socket, timeout: float) -> None:
    """Make the configured socket blocking. A call ends after ``timeout`` seconds, and so does a connection without
    acknowledgements.

    The user time-out also counts while the peer's receive buffer is full, so a transfer needs a longer one than a link.
    """
    sock.settimeout(timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout * 1000))


def limit_rate(sock: socket.socket, rate: int) -> None:
    """Let the kernel send at most ``rate`` bytes a second; 0 for no limit. Source: SO_MAX_PACING_RATE in socket(7)."""
    sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", rate or _UNLIMITED))


def wake_rarely(sock: socket.socket) -> None:
    """Report ``sock`` as readable only at its end, or when far more than heartbeats has arrived.

    Heartbeats can wait until the owner reads them.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _LOW_WATER_MARK)


def refused_by_kernel(sock: socket.socket) -> bool:
    """True if a TCP segment has arrived for ``sock``: then ECONNREFUSED is a reset by the kernel that has the address.

    A firewall may answer with ICMP "port unreachable". That is ECONNREFUSED too, and proves nothing about processes.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        return bool(_SEGMENTS_IN.unpack_from(info, _SEGMENTS_IN_AT)[0])
    except (OSError, AttributeError, struct.error):  # an old or an emulated kernel: nothing is proved
        return False


def _bound(kind: socket.AddressFamily, what: socket.SocketKind, address: str, port: int) -> socket.socket:
    """Return a socket at a port. A TCP port that connections of an earlier process still have can be bound.

    If two processes bind it, only one can listen.
    """
    sock = socket.socket(kind, what)
    try:
        sock.setblocking(False)
        if port and what is socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if kind == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # the IPv4 port may belong to another process
        sock.bind((address or ("::" if kind == socket.AF_INET6 else "0.0.0.0"), port))
    except BaseException:
        sock.close()
        raise
    return sock
