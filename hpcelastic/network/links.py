"""The links of one agent to its neighbours: made, kept, watched and made anew, in one thread.

Both ends of a link call each other. So each learns that the other itself answers at its port, without which no refusal
of that port counts; of two connections both keep the same one.
"""

import contextlib
import errno
import secrets
import selectors
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hpcelastic.network import sockets
from hpcelastic.network.connection import Connection
from hpcelastic.network.messages import NONCE, Kind, Message
from hpcelastic.network.peers import News, Peer, Shaken
from hpcelastic.network.session import Session
from hpcelastic.network.vigil import PULSE, Vigil

CALL_TIMEOUT = 1.0
"""Seconds in which a kernel answers a call, or it has come to nothing."""

PROOF_TIMEOUT = 5.0
"""Seconds in which who calls us has proved who it is."""

PARKED = 10.0
"""Seconds for which a connection of an agent that is no neighbour is kept: one of the two may lag by a round."""

_GUESTS = 32
"""Connections of others than neighbours, at most; the oldest yields."""

_ACCEPTED = 16
"""Connections accepted in one turn."""


@dataclass
class _Neighbour:
    peer: Peer
    vigil: Vigil
    link: Connection | None = None
    call: Connection | None = None
    """Not answered yet: under way, or taken by the kernel. It stays: its reset tells of the last process's end."""

    calling: bool = False
    """The kernel has not answered ``call``."""


class Links:
    """All TCP connections; ``tell`` takes news, ``ring`` a version that a neighbour knows. One thread uses it."""

    def __init__(
        self,
        key: bytes,
        node: str,
        presence: socket.socket,
        selector: selectors.BaseSelector,
        tell: Callable[[News], None],
        ring: Callable[[int], None],
    ) -> None:
        self._key = key
        self._node = node
        self._presence = presence
        self._selector = selector
        self._deliver = tell
        self._ring = ring
        self._neighbours: dict[str, _Neighbour] = {}
        self._guests: dict[Connection, float] = {}
        """Connections that are no links, and when they are given up; in the order in which they came."""

        self._version = 0
        """Newest that our owner knows, told in every pulse."""

        self._known = 0
        """Newest that our owner knows or was told of; never below ``_version``."""

        self._tick: float | None = None
        self._deaf = False
        """Nothing can be accepted, for want of descriptors or memory; tried again at the next tick."""

        selector.register(presence, selectors.EVENT_READ, self._accept)

    @property
    def healthy(self) -> bool:
        """There are neighbours, and each is linked and heard."""
        linked = [it.link is not None and not it.vigil.silent for it in self._neighbours.values()]
        return bool(linked) and all(linked)

    @property
    def due(self) -> float | None:
        """When `turn` has to be called; None if only something that comes can change anything."""
        calls = (it.vigil.due for it in self._neighbours.values() if it.call is None)
        return min((due for due in (self._tick, *calls) if due is not None), default=None)

    def watch(self, peers: Iterable[Peer], now: float) -> None:
        """Be linked to ``peers`` and to nobody else; what is known of those that stay is kept."""
        wanted = {peer.node: peer for peer in peers}
        for node, it in list(self._neighbours.items()):
            if wanted.get(node) != it.peer:
                self._drop(it, now)
        for node, peer in wanted.items():
            if node not in self._neighbours:
                self._neighbours[node] = _Neighbour(peer, Vigil(node, now))
                self._adopt(self._neighbours[node], now)

    def know(self, version: int) -> None:
        """Tell neighbours of ``version``, at once if it is new to us."""
        if version > self._version:
            self._version = version
            self._known = max(version, self._known)
            self._pulse()

    def told(self, version: int) -> None:
        """Our owner is told of ``version`` by another way, so no pulse needs to."""
        self._known = max(version, self._known)

    def turn(self, now: float) -> None:
        """What time has brought: pulses, calls, and what came to nothing."""
        if self._tick is None:
            self._tick = now + PULSE if self._busy else None
        elif now >= self._tick:
            self._beat(now, late=now - self._tick)
        for it in self._neighbours.values():
            due = it.vigil.due
            if it.call is None and due is not None and due <= now:
                self._call(it, now)

    def close(self) -> None:
        """Say goodbye to all. The port stays open where others hold it."""
        for it in self._neighbours.values():
            self._hang_up(it)
            if it.link:
                self._bye(it.link)
        for guest in list(self._guests):
            self._bye(guest)
        self._neighbours.clear()
        self._guests.clear()
        if not self._deaf:
            self._selector.unregister(self._presence)

    @property
    def _busy(self) -> bool:
        return bool(self._neighbours or self._guests or self._deaf)

    # What comes

    def _accept(self, now: float) -> None:
        for _ in range(_ACCEPTED):
            try:
                sock, _ = self._presence.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._deaf = True  # it stays readable: to go on listening would be to spin
                    self._selector.unregister(self._presence)
                    return
                continue  # the connection has failed before it was accepted
            try:
                sockets.tune(sock)
            except OSError:
                sock.close()
                continue
            guest = Connection(sock, Session(self._key, self._node, secrets.token_bytes(NONCE)), now)
            self._receive(guest, self._hear_guest)
            self._park(guest, now + PROOF_TIMEOUT)
            if not guest.closed:
                self._hear_guest(guest, now)  # its hello is often there already

    def _hear_guest(self, guest: Connection, now: float) -> None:
        received = guest.receive()
        if self._goodbye(guest, received.messages, None, now) or received.ended:
            del self._guests[guest]
            self._close(guest)
        elif guest.session.established:
            it = self._neighbours.get(guest.session.peer or "")
            if it:
                del self._guests[guest]
                self._link(it, guest, now)
            else:
                sockets.doze(guest.sock)
                self._guests[guest] = max(self._guests[guest], guest.began + PARKED)

    def _hear_link(self, link: Connection, now: float) -> None:
        received = link.receive()
        it = self._neighbours[link.session.peer or ""]
        if self._goodbye(link, received.messages, it, now):
            self._close(link)
            it.link = None
            it.vigil.part(now)
        elif received.ended:
            self._break(it, now)

    def _goodbye(
        self, connection: Connection, messages: tuple[Message, ...], it: _Neighbour | None, now: float
    ) -> bool:
        """Act on what was said, to ``it`` if this is its link; True if it was goodbye in the end."""
        for message in messages:
            if message.kind is Kind.BYE:
                return True
            if message.version > self._known:
                self._known = message.version  # told once: an owner that lags knows by it that there is more to read
                self._ring(message.version)
            self._tell(it.vigil.pulse(now) if it else None)
        return False

    def _hear_call(self, call: Connection, now: float) -> None:
        """The neighbour that we called says something, or nobody ever will."""
        it = self._neighbours[call.session.peer or ""]
        received = call.receive()
        if received.ended:
            self._hang_up(it)
            if received.reset:
                it.vigil.hang_up(now, call.began)
            else:
                it.vigil.fail()
        elif call.session.established:
            it.call = None
            it.vigil.answered()
            self._link(it, call, now)

    # Links

    def _link(self, it: _Neighbour, new: Connection, now: float) -> None:
        """Take a connection that has proved itself as the link, unless there is a better one."""
        old = it.link
        if old and not _better(new, old) and not it.vigil.quiet(now):
            self._bye(new)
            return
        it.link = new
        self._tell(it.vigil.link(now))
        self._receive(new, self._hear_link)
        sockets.doze(new.sock)
        new.pulse(self._version)  # of the caller, the proof that the other waits for
        if old:
            self._bye(old)

    def _break(self, it: _Neighbour, now: float) -> None:
        if it.link:
            self._close(it.link)
        it.link = None
        it.vigil.lose(now)
        self._tell(Shaken(it.peer.node))

    def _drop(self, it: _Neighbour, now: float) -> None:
        """It is no neighbour any more; its link stays for a while: it may not know that yet, or become one again."""
        self._hang_up(it)
        if it.link:
            self._receive(it.link, self._hear_guest)
            self._park(it.link, now + PARKED)
        del self._neighbours[it.peer.node]

    def _adopt(self, it: _Neighbour, now: float) -> None:
        """A connection of one that was no neighbour may be there already."""
        for guest in [guest for guest in self._guests if guest.session.established]:
            if guest.session.peer == it.peer.node:
                del self._guests[guest]
                self._link(it, guest, now)

    def _park(self, guest: Connection, until: float) -> None:
        self._guests[guest] = until
        if len(self._guests) > _GUESTS:
            # Who floods us with connections pushes out its own before any that has said something authentic.
            oldest = min(self._guests, key=lambda it: (it.session.established, it.session.peer is not None))
            del self._guests[oldest]
            self._bye(oldest)

    # Calls

    def _call(self, it: _Neighbour, now: float) -> None:
        it.vigil.dialled(now)
        try:
            sock, error = sockets.call(it.peer.address, it.peer.port)
        except OSError:  # no descriptor, no such network
            it.vigil.fail()
            return
        it.call = Connection(sock, Session(self._key, self._node, secrets.token_bytes(NONCE), it.peer.node), now)
        it.calling = True
        if error in (0, errno.EINPROGRESS):
            self._selector.register(sock, selectors.EVENT_WRITE, lambda now: self._called(it, now))
        else:
            self._conclude(it, error, now)

    def _called(self, it: _Neighbour, now: float) -> None:
        """The kernel has answered, or given up."""
        if it.call and it.calling:
            self._conclude(it, it.call.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), now)

    def _conclude(self, it: _Neighbour, error: int, now: float) -> None:
        call = it.call
        assert call is not None
        if not error:
            it.calling = False
            self._receive(call, self._hear_call)
            call.hello()
            return
        refused = error == errno.ECONNREFUSED and sockets.by_kernel(call.sock)
        self._hang_up(it)
        if refused:
            self._tell(it.vigil.refuse(now))
        else:
            it.vigil.fail()

    def _hang_up(self, it: _Neighbour) -> None:
        if it.call:
            self._close(it.call)
        it.call, it.calling = None, False

    # Time

    def _beat(self, now: float, late: float) -> None:
        self._tick = now + PULSE if self._busy else None
        if self._deaf:
            with contextlib.suppress(OSError):
                self._selector.register(self._presence, selectors.EVENT_READ, self._accept)
                self._deaf = False
        for guest in [guest for guest, until in self._guests.items() if until <= now]:
            del self._guests[guest]
            self._bye(guest)
        for connection in self._established():
            if not connection.closed:  # by what another said
                connection.hear(connection, now)
        self._pulse()
        for it in self._neighbours.values():
            if late > PULSE:
                it.vigil.excuse(late)
            if it.call and it.calling and now - it.call.began > CALL_TIMEOUT:
                self._hang_up(it)
                it.vigil.fail()
            if it.vigil.lapsed(now):
                self._break(it, now)
            self._tell(it.vigil.look(now))

    def _tell(self, news: News | None) -> None:
        if news:
            self._deliver(news)

    def _pulse(self) -> None:
        for connection in self._established():
            connection.pulse(self._version)

    def _established(self) -> list[Connection]:
        """The links, and the connections of strangers that may take us for a neighbour."""
        links = [it.link for it in self._neighbours.values() if it.link]
        return [*links, *(guest for guest in self._guests if guest.session.established)]

    # Sockets

    def _receive(self, connection: Connection, hear: Callable[[Connection, float], None]) -> None:
        """Have ``hear`` called whenever something comes, from now on: also for what was found ready before."""
        connection.hear = hear
        if connection.registered:
            return

        def heard(now: float) -> None:
            if not connection.closed:  # by what came before it in the same turn
                connection.hear(connection, now)

        connection.registered = True
        try:
            self._selector.modify(connection.sock, selectors.EVENT_READ, heard)
        except KeyError:
            self._selector.register(connection.sock, selectors.EVENT_READ, heard)

    def _bye(self, connection: Connection) -> None:
        self._selector.unregister(connection.sock)
        connection.bye()

    def _close(self, connection: Connection) -> None:
        with contextlib.suppress(KeyError):  # a call that failed at once was never registered
            self._selector.unregister(connection.sock)
        connection.close()


def _better(new: Connection, old: Connection) -> bool:
    """Of two connections both ends keep the one that the lesser node made; of one node's two, the later."""
    callers = new.session.dialler or "", old.session.dialler or ""
    return callers[0] <= callers[1]
