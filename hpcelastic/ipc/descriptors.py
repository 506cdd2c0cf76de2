"""File descriptors that are sent over Unix sockets.

``socket.send_fds`` and ``socket.recv_fds`` ignore their ``flags`` in some versions of Python, 3.11 for example. A call
that must not block would block.
"""

import array
import socket
from collections.abc import Sequence


def send_fds(connection: socket.socket, data: bytes, fds: Sequence[int], flags: int = 0) -> int:
    """Send ``data`` with copies of ``fds``. Return the number of bytes that were sent."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    return connection.sendmsg([data], ancillary, flags)


def receive_fds(connection: socket.socket, max_bytes: int, max_fds: int, flags: int = 0) -> tuple[bytes, list[int]]:
    """Receive data and the descriptors that were sent with it. They are not inherited by other programs."""
    fds = array.array("i")
    size = socket.CMSG_LEN(max_fds * fds.itemsize)
    data, ancillary, _, _ = connection.recvmsg(max_bytes, size, flags | socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return data, list(fds)
