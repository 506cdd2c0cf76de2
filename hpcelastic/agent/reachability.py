"""Which of the other nodes of a round this node reaches by TCP, at the port that all processes of a node hold."""

import errno
import random
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from hpcelastic.network.sockets import connect
from hpcelastic.protocol.state import Participant

_TIMEOUT = 2.0
"""Seconds for a connection. The kernel repeats a lost request after one second."""

_AT_ONCE = 128
"""Connections that are tried at the same time. Many systems let a process open only 1,024 files."""

_LAST_BEGIN = 2.5
"""Seconds after which no further connection begins, because the examiner waits only some seconds for the result."""

_REACHED = (0, errno.ECONNREFUSED, errno.ECONNRESET)
"""Results of a connection with which the other machine has answered."""


class _Trial(NamedTuple):
    """A connection to the peer ``name`` that must be made before ``deadline``."""

    name: str
    deadline: float


def unreached(peers: Sequence[Participant], address: str) -> list[str]:
    """Return the names of the ``peers`` that do not answer. The connections begin at our ``address``.

    A peer whose port is closed answers, too. Peers without a port for notifications are not tried, nor the last ones of
    a random order if hundreds do not answer. Each node has another order.
    """
    tried = [peer for peer in peers if peer.notification_port]
    waiting, lost = deque(random.sample(tried, len(tried))), set[str]()
    last_begin = time.monotonic() + _LAST_BEGIN
    with selectors.DefaultSelector() as selector:
        while waiting or selector.get_map():
            while waiting and len(selector.get_map()) < _AT_ONCE:
                peer = waiting.popleft()
                if not _begin(selector, peer, address):
                    lost.add(peer.name)
            lost |= _finish(selector)
            if time.monotonic() >= last_begin:
                waiting.clear()
    return [peer.name for peer in tried if peer.name in lost]


def _begin(selector: selectors.BaseSelector, peer: Participant, address: str) -> bool:
    """Begin a connection to a peer. Return False if there is no way to it."""
    try:
        connection, result = connect(peer.address, peer.notification_port, address)
    except OSError:
        return True  # this node lacks something, which proves nothing about the peer
    if result == errno.EINPROGRESS:
        selector.register(connection, selectors.EVENT_WRITE, _Trial(peer.name, time.monotonic() + _TIMEOUT))
        return True
    connection.close()
    return result in _REACHED


def _finish(selector: selectors.BaseSelector) -> set[str]:
    """Wait until connections have a result, or are late, and close them. Return the peers that were not reached."""
    trials = [*selector.get_map().values()]
    if not trials:
        return set()
    first = min(key.data.deadline for key in trials)
    ready = {key.fd for key, _ in selector.select(max(0.0, first - time.monotonic()))}
    lost, now = set(), time.monotonic()
    for key in trials:
        connection, trial = key.fileobj, key.data
        assert isinstance(connection, socket.socket)
        if key.fd not in ready and trial.deadline > now:
            continue
        if key.fd not in ready or connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) not in _REACHED:
            lost.add(trial.name)
        selector.unregister(connection)
        connection.close()
    return lost
