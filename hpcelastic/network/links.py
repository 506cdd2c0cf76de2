"""The links of one agent to its neighbours: dialled, monitored and dialled again, all in one thread.

Both ends of a link dial each other. So each end learns that the other itself answers at its port, without which no
refusal of that port counts. Of two connections both ends keep the same one.
"""

import contextlib
import errno
import secrets
import selectors
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hpcelastic.network import sockets
from hpcelastic.network.channel import Session
from hpcelastic.network.connection import Connection, preferred
from hpcelastic.network.messages import NONCE, Kind, Message
from hpcelastic.network.notifications import KnownVersions
from hpcelastic.network.transfer import Transfer, TransferError
from hpcelastic.protocol.failure_detector import PeerFailureDetector
from hpcelastic.protocol.peers import News, Peer, PeerLinkLost

CONNECT_TIMEOUT = 1.0
"""Seconds in which the peer's kernel has to answer a dial; after that the dial has failed."""

HANDSHAKE_TIMEOUT = 5.0
"""Seconds in which the initiator of an accepted connection has to prove its identity."""

UNLINKED_TIMEOUT = 10.0
"""Seconds for which the connection of an agent that is no neighbour is kept: one of the two may lag by a round."""

_MAX_UNLINKED = 32
"""Connections that are no links, at most. Beyond this the oldest is closed."""

_MAX_ACCEPTS = 16
"""Connections accepted in one turn of the thread."""


@dataclass
class _Neighbour:
    peer: Peer
    detector: PeerFailureDetector
    link: Connection | None = None
    dial: Connection | None = None
    """A connection that we dial, and that the peer has not answered yet. If only the peer's kernel has accepted it, it
    stays open: its reset shows the end of the peer's last process."""

    connecting: bool = False
    """True until the kernel has answered ``dial``."""


class Links:
    """All TCP connections of the agent, except those of transfers.

    ``deliver`` receives the news, and ``notify`` each newer version that a neighbour knows. ``transfer`` receives the
    transfers that other agents start. Heartbeats are sent every ``interval`` seconds. Used by one thread only.
    """

    def __init__(
        self,
        key: bytes,
        node: str,
        presence: socket.socket,
        selector: selectors.BaseSelector,
        deliver: Callable[[News], None],
        notify: Callable[[int], None],
        transfer: Callable[[Transfer], None] | None,
        interval: float,
    ) -> None:
        self._key, self._interval, self._node = key, interval, node
        self._presence, self._selector = presence, selector
        self._deliver, self._notify, self._transfer = deliver, notify, transfer
        self._neighbours: dict[str, _Neighbour] = {}
        self._unlinked: dict[Connection, float] = {}
        """Connections that are no links, with the times at which they expire; in the order in which they were added."""

        self._versions = KnownVersions()
        self._next_heartbeat: float | None = None
        self._accept_paused = False
        """True while nothing can be accepted, for lack of descriptors or memory. The next heartbeat retries."""

        selector.register(presence, selectors.EVENT_READ, self._accept)

    @property
    def healthy(self) -> bool:
        """True if there are neighbours, and each is linked and sends heartbeats."""
        neighbours = self._neighbours.values()
        return bool(neighbours) and all(it.link is not None and not it.detector.silent for it in neighbours)

    @property
    def deadline(self) -> float | None:
        """The time at which `run_timers` has to be called; None if there is nothing to do before data arrives."""
        dials = (it.detector.next_dial for it in self._neighbours.values() if it.dial is None)
        return min((it for it in (self._next_heartbeat, *dials) if it is not None), default=None)

    def watch(self, peers: Iterable[Peer], now: float) -> None:
        """Keep links to exactly ``peers``; neighbours that remain keep their state."""
        wanted = {peer.node: peer for peer in peers}
        for node, neighbour in list(self._neighbours.items()):
            if wanted.get(node) != neighbour.peer:
                self._remove(neighbour, now)
        for node, peer in wanted.items():
            if node not in self._neighbours:
                self._neighbours[node] = _Neighbour(peer, PeerFailureDetector(node, now, self._interval))
                self._link_existing(self._neighbours[node], now)
        self._neighbours = {node: self._neighbours[node] for node in wanted}

    def announce(self, version: int) -> None:
        """Send ``version`` in the heartbeats, and send heartbeats at once if it is new.

        If a datagram has brought it, its writer has notified all nodes. Then one heartbeat, to the first neighbour,
        suffices in case that a datagram was lost.
        """
        if self._versions.learn(version):
            self._send_heartbeats(1 if self._versions.sent_to_all else None)

    def mark_notified(self, version: int) -> None:
        """Record that a datagram has notified our owner of ``version``, so that no heartbeat has to notify it."""
        self._versions.add_datagram(version)

    def ignore_pause(self, now: float) -> None:
        """Disregard the time for which our thread hung. It must be called before what arrived meanwhile is read."""
        late = now - (self._next_heartbeat or now)
        if late > self._interval:
            self._next_heartbeat = now
            for neighbour in self._neighbours.values():
                neighbour.detector.ignore_pause(late)

    def run_timers(self, now: float) -> None:
        """Do what is due: heartbeats, dials and time-outs."""
        if self._next_heartbeat is None:
            self._next_heartbeat = now + self._interval if self._needs_heartbeats else None
        elif now >= self._next_heartbeat:
            self._heartbeat(now)
        for neighbour in self._neighbours.values():
            next_dial = neighbour.detector.next_dial
            if neighbour.dial is None and next_dial is not None and next_dial <= now:
                self._dial(neighbour, now)

    def close(self) -> None:
        """Close all connections gracefully. The port stays open while other processes hold it."""
        for neighbour in self._neighbours.values():
            self._abort_dial(neighbour)
            if neighbour.link:
                self._close_gracefully(neighbour.link)
        for connection in list(self._unlinked):
            self._close_gracefully(connection)
        self._neighbours.clear()
        self._unlinked.clear()
        if not self._accept_paused:
            self._selector.unregister(self._presence)

    @property
    def _needs_heartbeats(self) -> bool:
        return bool(self._neighbours or self._unlinked or self._accept_paused)

    # Receiving

    def _accept(self, now: float) -> None:
        for _ in range(_MAX_ACCEPTS):
            try:
                sock, _ = self._presence.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._accept_paused = True  # it stays readable, so the thread would spin if it continued
                    self._selector.unregister(self._presence)
                    return
                continue  # the connection failed before it was accepted
            try:
                sockets.configure(sock)
            except OSError:
                sock.close()
                continue
            connection = Connection(sock, Session(self._key, self._node, secrets.token_bytes(NONCE)), now)
            self._set_reader(connection, self._receive_unlinked)
            self._add_unlinked(connection, now + HANDSHAKE_TIMEOUT)
            if not connection.closed:
                self._receive_unlinked(connection, now)  # its hello has often arrived already

    def _receive_unlinked(self, connection: Connection, now: float) -> None:
        received = connection.receive()
        if self._process(connection, received.messages, None, now) or received.ended:
            del self._unlinked[connection]
            self._close(connection)
        elif connection.session.is_transfer:
            del self._unlinked[connection]
            self._hand_over(connection)
        elif connection.session.established:
            neighbour = self._neighbours.get(connection.session.peer or "")
            if neighbour:
                del self._unlinked[connection]
                self._link(neighbour, connection, now)
            else:
                sockets.wake_rarely(connection.sock)
                self._unlinked[connection] = max(self._unlinked[connection], connection.started + UNLINKED_TIMEOUT)

    def _hand_over(self, connection: Connection) -> None:
        """Leave the connection to the owner of transfers. It says nothing about a neighbour."""
        if not self._transfer:
            self._close(connection)
            return
        self._selector.unregister(connection.sock)
        with contextlib.suppress(TransferError):  # the peer has ended it already
            self._transfer(connection.to_transfer())

    def _receive_link(self, link: Connection, now: float) -> None:
        received = link.receive()
        neighbour = self._neighbours[link.session.peer or ""]
        if self._process(link, received.messages, neighbour, now):
            self._close(link)
            neighbour.link = None
            neighbour.detector.link_closed(now)
        elif received.ended:
            self._lose_link(neighbour, now)

    def _process(
        self, connection: Connection, messages: tuple[Message, ...], neighbour: _Neighbour | None, now: float
    ) -> bool:
        """Process messages, of ``neighbour`` if this is its link; return True if they close the connection."""
        for message in messages:
            if message.kind is Kind.CLOSE:
                return True
            if self._versions.add_heartbeat(message.version):
                self._notify(message.version)
            self._report(neighbour.detector.heartbeat_received(now) if neighbour else None)
        return False

    def _receive_dial(self, dial: Connection, now: float) -> None:
        """Read the answer to our dial, or its end."""
        neighbour = self._neighbours[dial.session.peer or ""]
        received = dial.receive()
        if received.ended:
            self._abort_dial(neighbour)
            if received.reset:
                neighbour.detector.dial_reset(now, dial.started)
            else:
                neighbour.detector.dial_failed()
        elif dial.session.established:
            neighbour.dial = None
            neighbour.detector.port_answered()
            self._link(neighbour, dial, now)

    # Links

    def _link(self, neighbour: _Neighbour, new: Connection, now: float) -> None:
        """Use an authenticated connection as the link, unless there is a better one."""
        old = neighbour.link
        if old and not preferred(new, old) and not neighbour.detector.misses_heartbeats(now):
            self._close_gracefully(new)
            return
        neighbour.link = new
        self._report(neighbour.detector.link_established(now))
        self._set_reader(new, self._receive_link)
        sockets.wake_rarely(new.sock)
        new.send_heartbeat(self._versions.newest)  # of the initiator: it is the proof that the responder waits for
        if old:
            self._close_gracefully(old)

    def _lose_link(self, neighbour: _Neighbour, now: float) -> None:
        if neighbour.link:
            self._close(neighbour.link)
        neighbour.link = None
        neighbour.detector.link_lost(now)
        self._report(PeerLinkLost(neighbour.peer.node))

    def _remove(self, neighbour: _Neighbour, now: float) -> None:
        """Remove a neighbour, but keep its connection for a while.

        The peer may not know of the change yet, or become a neighbour again.
        """
        self._abort_dial(neighbour)
        if neighbour.link:
            self._set_reader(neighbour.link, self._receive_unlinked)
            self._add_unlinked(neighbour.link, now + UNLINKED_TIMEOUT)
        del self._neighbours[neighbour.peer.node]

    def _link_existing(self, neighbour: _Neighbour, now: float) -> None:
        """Use a connection that the new neighbour has established already."""
        for connection in [connection for connection in self._unlinked if connection.session.established]:
            if connection.session.peer == neighbour.peer.node:
                del self._unlinked[connection]
                self._link(neighbour, connection, now)

    def _add_unlinked(self, connection: Connection, expiry: float) -> None:
        self._unlinked[connection] = expiry
        if len(self._unlinked) > _MAX_UNLINKED:
            # Connections without a valid message are closed first, so a flood of connections removes only its own.
            oldest = min(self._unlinked, key=lambda it: (it.session.established, it.session.peer is not None))
            del self._unlinked[oldest]
            self._close_gracefully(oldest)

    # Dials

    def _dial(self, neighbour: _Neighbour, now: float) -> None:
        neighbour.detector.dial_started(now)
        peer = neighbour.peer
        try:
            sock, error = sockets.connect(peer.address, peer.port)
        except OSError:  # no descriptor, or no such network
            neighbour.detector.dial_failed()
            return
        neighbour.dial = Connection(sock, Session(self._key, self._node, secrets.token_bytes(NONCE), peer.node), now)
        neighbour.connecting = True
        if error in (0, errno.EINPROGRESS):
            self._selector.register(sock, selectors.EVENT_WRITE, lambda now: self._check_connect(neighbour, now))
        else:
            self._finish_connect(neighbour, error, now)

    def _check_connect(self, neighbour: _Neighbour, now: float) -> None:
        """Process the result of a connect, which the kernel has reported."""
        if neighbour.dial and neighbour.connecting:
            error = neighbour.dial.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._finish_connect(neighbour, error, now)

    def _finish_connect(self, neighbour: _Neighbour, error: int, now: float) -> None:
        dial = neighbour.dial
        assert dial is not None
        if not error:
            neighbour.connecting = False
            self._set_reader(dial, self._receive_dial)
            dial.send_hello()
            return
        refused = error == errno.ECONNREFUSED and sockets.refused_by_kernel(dial.sock)
        self._abort_dial(neighbour)
        if refused:
            self._report(neighbour.detector.dial_refused(now))
        else:
            neighbour.detector.dial_failed()

    def _abort_dial(self, neighbour: _Neighbour) -> None:
        if neighbour.dial:
            self._close(neighbour.dial)
        neighbour.dial, neighbour.connecting = None, False

    # Timers

    def _heartbeat(self, now: float) -> None:
        self._next_heartbeat = now + self._interval if self._needs_heartbeats else None
        if self._accept_paused:
            with contextlib.suppress(OSError):
                self._selector.register(self._presence, selectors.EVENT_READ, self._accept)
                self._accept_paused = False
        for connection in [connection for connection, expiry in self._unlinked.items() if expiry <= now]:
            del self._unlinked[connection]
            self._close_gracefully(connection)
        for connection in self._established():
            if not connection.closed:  # a message on another connection may have closed it
                connection.on_readable(connection, now)
        self._send_heartbeats()
        for neighbour in self._neighbours.values():
            if neighbour.dial and neighbour.connecting and now - neighbour.dial.started > CONNECT_TIMEOUT:
                self._abort_dial(neighbour)
                neighbour.detector.dial_failed()
            if neighbour.detector.link_timed_out(now):
                self._lose_link(neighbour, now)
            self._report(neighbour.detector.check_silence(now))

    def _report(self, news: News | None) -> None:
        if news:
            self._deliver(news)

    def _send_heartbeats(self, most: int | None = None) -> None:
        for connection in self._established()[:most]:
            connection.send_heartbeat(self._versions.newest)

    def _established(self) -> list[Connection]:
        """Return the links, and the connections of other agents that may treat us as a neighbour."""
        links = [it.link for it in self._neighbours.values() if it.link]
        return [*links, *(connection for connection in self._unlinked if connection.session.established)]

    # Sockets

    def _set_reader(self, connection: Connection, reader: Callable[[Connection, float], None]) -> None:
        """Call ``reader`` from now on when data arrives, also for data that this turn has found before."""
        connection.on_readable = reader
        if connection.registered:
            return

        def read(now: float) -> None:
            if not connection.closed:  # earlier data of the same turn may have closed it
                connection.on_readable(connection, now)

        connection.registered = True
        try:
            self._selector.modify(connection.sock, selectors.EVENT_READ, read)
        except KeyError:
            self._selector.register(connection.sock, selectors.EVENT_READ, read)

    def _close_gracefully(self, connection: Connection) -> None:
        self._selector.unregister(connection.sock)
        connection.close_gracefully()

    def _close(self, connection: Connection) -> None:
        with contextlib.suppress(KeyError):  # a dial that failed at once was never registered
            self._selector.unregister(connection.sock)
        connection.close()
