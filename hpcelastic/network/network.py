"""The network of one agent: sends and receives notifications, and monitors its neighbours.

It has one thread, which sleeps while there is nothing to do. A failure of the network raises no error: notifications
are lost and neighbours become silent, and the run continues with its files.
"""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from hpcelastic.network import sockets
from hpcelastic.network.links import Links
from hpcelastic.network.messages import LONGEST, Kind, Message, encode, encode_change, parse_datagram
from hpcelastic.network.notifications import RateLimiter, ReplayFilter
from hpcelastic.network.transfer import Transfer, dial
from hpcelastic.protocol.changes import MAX_LENGTH
from hpcelastic.protocol.failure_detector import HEARTBEAT_INTERVAL
from hpcelastic.protocol.peers import News, Notification, Peer

_MAX_DATAGRAMS = 64
"""Notifications read in one turn of the thread, so that a flood of them does not delay heartbeats."""

_ERROR_DELAY = 0.1
"""Seconds to wait after an unexpected error of the operating system, so that the thread does not spin."""


class Network:
    """The network of the agent of ``node``. Binds one port for UDP and TCP at every address of ``address``'s family.

    It is one of ``ports``, by default any. Heartbeats are sent every ``interval`` seconds.

    The thread of the network calls ``deliver`` with news, and ``transfer`` with each transfer that another agent has
    started. They must return at once and not raise. ``transfer`` passes the transfer to a thread of its owner, which
    closes it. Without ``transfer``, the connection is closed.

    ``node`` is ``NAME@INCARNATION``. Raises OSError if no port can be bound, and ValueError if ``node`` has more than
    255 bytes.
    """

    def __init__(
        self,
        key: bytes,
        node: str,
        address: str,
        deliver: Callable[[News], None],
        transfer: Callable[[Transfer], None] | None = None,
        ports: Sequence[int] = (),
        interval: float = HEARTBEAT_INTERVAL,
    ) -> None:
        self._key = key
        self._node = node
        self._deliver = deliver
        encode(key, Message(Kind.NOTIFICATION, node))  # raises ValueError if the id is too long
        family = sockets.family(address) or socket.AF_INET
        self._datagrams, self.presence = sockets.bind_pair(family, ports)
        self.port: int = self.presence.getsockname()[1]
        self._senders = {family: self._datagrams}
        self._selector = selectors.DefaultSelector()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._replay_filter = ReplayFilter()
        self._limiter = RateLimiter()
        self._links = Links(key, node, self.presence, self._selector, deliver, self._limiter.add, transfer, interval)
        self._changed = 0
        """The newest version whose change was delivered. Only the thread uses it."""

        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._lock = threading.Lock()
        self._new_neighbours: tuple[Peer, ...] | None = None
        """The neighbours from the next turn on; None if unchanged. The lock guards this and the next 5 attributes."""

        self._neighbours: tuple[Peer, ...] = ()
        self._version = 0
        """The newest version that the owner knows, or that a datagram has named."""

        self._sequence = 0
        self._closing = False
        self._closed = False
        self._healthy = False

    @property
    def healthy(self) -> bool:
        """True if there are neighbours and all links to them were up at the last turn of the thread."""
        return self._healthy

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def notify(self, peers: Iterable[Peer], version: int, change: bytes = b"") -> None:
        """Notify ``peers`` of news, and of ``version`` of the register. Peers that cannot be reached miss it.

        ``change`` is the difference from the version before; see `hpcelastic.protocol.changes`.
        """
        with self._lock:
            if self._closing:
                return
            self._version = max(version, self._version)
            # CLOCK_BOOTTIME also counts while the machine is suspended, so the sequence grows for a whole incarnation.
            self._sequence = max(self._sequence + 1, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
            message = Message(Kind.NOTIFICATION, self._node, self._sequence, max(version, 0))
            datagram = encode_change(self._key, message, change) if change else encode(self._key, message)
            for peer in peers:
                if peer.node != self._node and sockets.valid_endpoint(peer.address, peer.port):
                    self._send(datagram, peer)

    def watch(self, peers: Iterable[Peer], version: int) -> None:
        """Keep links to exactly ``peers``, the neighbours of this node; see `hpcelastic.protocol.peers.linked`.

        ``version`` of the register is the newest known here; heartbeats carry it, and the first neighbour gets it at
        once. Peers without a port, or with an address that is not numeric, are left out.
        """
        valid = (peer for peer in peers if sockets.valid_endpoint(peer.address, peer.port))
        neighbours = tuple(peer for peer in valid if peer.node != self._node)
        with self._lock:
            if neighbours == self._neighbours and version <= self._version:
                return
            self._neighbours = self._new_neighbours = neighbours
            self._version = max(version, self._version)
        self._wake()

    def dial(self, peer: Peer, rate: int) -> Transfer:
        """Start a transfer with ``peer``; see `hpcelastic.network.transfer.dial`. It may be called in any thread."""
        return dial(self._key, self._node, peer, rate)

    def close(self) -> None:
        """Close all connections gracefully and end the thread. May be called repeatedly.

        The port stays open as long as another process holds `presence`.
        """
        with self._lock:
            self._closing = True
        self._wake()
        if self._thread.is_alive():
            if self._thread is not threading.current_thread():
                self._thread.join()
        else:
            self._release()

    def _send(self, datagram: bytes, peer: Peer) -> None:
        family = sockets.family(peer.address) or socket.AF_INET
        try:  # not contextlib.suppress, which takes a tenth of the time of a message
            if family not in self._senders:
                self._senders[family] = sockets.datagram_socket(family)
            self._senders[family].sendto(datagram, (peer.address, peer.port))
        except OSError:
            pass

    def _wake(self) -> None:
        with self._lock:
            if not self._closed:  # otherwise the descriptor may belong to another file
                os.eventfd_write(self._wakeup, 1)

    # The thread

    def _run(self) -> None:
        self._selector.register(self._datagrams, selectors.EVENT_READ, self._receive_notifications)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._receive_wakeup)
        try:
            while not self._closing:
                try:
                    self._turn()
                except OSError:
                    time.sleep(_ERROR_DELAY)
        finally:
            self._healthy = False
        self._release()  # not after an internal error: a closed port would mean that the agent is dead

    def _turn(self) -> None:
        deadlines = [it for it in (self._links.deadline, self._limiter.deadline) if it is not None]
        events = self._selector.select(max(0.0, min(deadlines) - time.monotonic()) if deadlines else None)
        now = time.monotonic()
        self._links.ignore_pause(now)
        for key, _ in events:
            key.data(now)
        self._links.announce(self._version)
        self._links.run_timers(now)
        version = self._limiter.take(now)
        if version is not None:
            self._deliver(Notification(version))
        self._healthy = self._links.healthy

    def _receive_wakeup(self, now: float) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)
        with self._lock:
            neighbours, self._new_neighbours = self._new_neighbours, None
        if neighbours is not None:
            self._links.watch(neighbours, now)

    def _receive_notifications(self, now: float) -> None:
        for _ in range(_MAX_DATAGRAMS):
            try:
                data = self._datagrams.recv(LONGEST + MAX_LENGTH + 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # the error of an earlier datagram that we sent
                continue
            message, change = parse_datagram(self._key, data) or (None, b"")
            if message is None or message.sender == self._node:
                continue
            if self._replay_filter.is_new(message.sender, message.sequence):
                with self._lock:
                    self._version = max(message.version, self._version)
                self._links.mark_notified(message.version)
                if change and message.version > self._changed:
                    self._changed = message.version
                    self._deliver(Notification(message.version, change))
                else:
                    self._limiter.add(message.version)

    def _release(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._links.close()
            self._selector.close()
            self.presence.close()  # never shutdown(): that would end it for all processes that hold it
            for sock in self._senders.values():
                sock.close()
            os.close(self._wakeup)
