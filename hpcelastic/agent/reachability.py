"""Which of the other nodes of a round this node reaches by TCP, at the port that all processes of a node hold."""

import errno
import selectors
import socket
import time
from collections.abc import Sequence

from hpcelastic.network.sockets import connect
from hpcelastic.protocol.state import Participant

_TIMEOUT = 2.0
"""Seconds for a connection. The kernel repeats a lost request after one second."""

_REACHED = (0, errno.ECONNREFUSED, errno.ECONNRESET)
"""Results of a connection with which the other machine has answered."""


def unreached(peers: Sequence[Participant], address: str) -> list[str]:
    """Return the names of the ``peers`` that do not answer. The connections begin at our ``address``.

    A peer whose port is closed answers, too. Peers without a port for notifications are not tried.
    """
    tried = [peer for peer in peers if peer.notification_port]
    with selectors.DefaultSelector() as selector:
        lost = {peer.name for peer in tried if not _begin(selector, peer, address)}
        deadline = time.monotonic() + _TIMEOUT
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                connection, peer = key.fileobj, key.data
                assert isinstance(connection, socket.socket)
                if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) not in _REACHED:
                    lost.add(peer.name)
                selector.unregister(connection)
                connection.close()
        for key in [*selector.get_map().values()]:
            assert isinstance(key.fileobj, socket.socket)
            lost.add(key.data.name)
            key.fileobj.close()
    return [peer.name for peer in tried if peer.name in lost]


def _begin(selector: selectors.BaseSelector, peer: Participant, address: str) -> bool:
    """Begin a connection to a peer. Return False if there is no way to it."""
    try:
        connection, result = connect(peer.address, peer.notification_port, address)
    except OSError:
        return True  # this node lacks something, which proves nothing about the peer
    if result == errno.EINPROGRESS:
        selector.register(connection, selectors.EVENT_WRITE, peer)
        return True
    connection.close()
    return result in _REACHED
