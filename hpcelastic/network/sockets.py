"""The sockets that the network is made of: one port for UDP and TCP, calls that never block, and who refused one."""

import contextlib
import errno
import socket
import struct

_BACKLOG = 1024
"""Connections that the kernel takes while no agent accepts them; more of them are ignored, not refused."""

_TRIES = 100
_USER_TIMEOUT = 3000  # ms
_MUCH = 4096
"""Bytes that are no pulses of a few seconds."""

_SEGMENTS_IN = struct.Struct("=I")
_SEGMENTS_IN_AT = 140
"""Where tcpi_segs_in is in struct tcp_info; source: <linux/tcp.h>, since Linux 4.2."""


def family(address: str) -> socket.AddressFamily | None:
    """The family of a numeric address; None for all else, names and scoped addresses included."""
    for candidate in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(candidate, address)
            return candidate
    return None


def valid(address: str, port: int) -> bool:
    """True where something can be sent to."""
    return 0 < port < 65536 and family(address) is not None


def pair(kind: socket.AddressFamily) -> tuple[socket.socket, socket.socket]:
    """A UDP socket and a listening TCP socket with one port number, at every address of this machine.

    Raises OSError if that can't be had.
    """
    for _ in range(_TRIES):
        stream = _bound(kind, socket.SOCK_STREAM, 0)
        try:
            datagram = _bound(kind, socket.SOCK_DGRAM, stream.getsockname()[1])
        except OSError as error:
            stream.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        stream.listen(_BACKLOG)
        return datagram, stream
    raise OSError(errno.EADDRINUSE, f"no port is free for both UDP and TCP; tried {_TRIES}")


def datagrams(kind: socket.AddressFamily) -> socket.socket:
    """A UDP socket to send with."""
    sock = socket.socket(kind, socket.SOCK_DGRAM)
    sock.setblocking(False)
    return sock


def call(address: str, port: int) -> tuple[socket.socket, int]:
    """Begin to connect: the socket, and 0 or EINPROGRESS if it is under way, else the error. Raises OSError."""
    sock = socket.socket(family(address) or socket.AF_INET, socket.SOCK_STREAM)
    try:
        tune(sock)
        return sock, sock.connect_ex((address, port))
    except BaseException:
        sock.close()
        raise


def tune(sock: socket.socket) -> None:
    """Never block, send at once, and notice within seconds that the other machine has gone or was started anew."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT)


def doze(sock: socket.socket) -> None:
    """Be woken by the end of the connection, or by far more than pulses: those can wait until they are looked for."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _MUCH)


def by_kernel(sock: socket.socket) -> bool:
    """True if a TCP segment has come for ``sock``: then ECONNREFUSED was a reset by the kernel that has the address.

    A firewall may answer with ICMP "port unreachable", which is ECONNREFUSED as well and says nothing of processes.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        return bool(_SEGMENTS_IN.unpack_from(info, _SEGMENTS_IN_AT)[0])
    except (OSError, AttributeError, struct.error):  # an old or a feigned kernel: nothing is proved
        return False


def _bound(kind: socket.AddressFamily, what: socket.SocketKind, port: int) -> socket.socket:
    sock = socket.socket(kind, what)
    try:
        sock.setblocking(False)
        if kind == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # the same port of IPv4 may be another's
        sock.bind(("::" if kind == socket.AF_INET6 else "0.0.0.0", port))
    except BaseException:
        sock.close()
        raise
    return sock
