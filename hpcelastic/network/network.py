"""One agent's network: it rings others, is rung, and watches its neighbours; one thread, which sleeps when nothing is.

A failure of the network degrades: bells are lost, neighbours are silent, nothing is raised. The files carry the run.
"""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from hpcelastic.network import sockets
from hpcelastic.network.bells import Freshness, Gate
from hpcelastic.network.links import Links
from hpcelastic.network.messages import LONGEST, Kind, Message, encode, parse
from hpcelastic.network.peers import News, Peer, Rung, linked

_DATAGRAMS = 64
"""Bells read in one turn, so that a flood of them holds up no pulse."""

_TROUBLE = 0.1
"""Seconds to wait when the system has refused what it must not, lest the thread spin."""


class Network:
    """Binds one port for UDP and TCP at every address of ``address``'s family; OSError if there is none to be had.

    ``deliver`` is called with news in the network's thread, and must neither block nor raise. ``node`` is
    ``NAME@INCARNATION``, and ValueError if that has more than 255 bytes.
    """

    def __init__(self, key: bytes, node: str, address: str, deliver: Callable[[News], None]) -> None:
        self._key = key
        self._node = node
        self._deliver = deliver
        encode(key, Message(Kind.BELL, node))  # says at once if the id is too long
        family = sockets.family(address) or socket.AF_INET
        self._bells, self.presence = sockets.pair(family)
        self.port: int = self.presence.getsockname()[1]
        self._senders = {family: self._bells}
        self._selector = selectors.DefaultSelector()
        self._alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._freshness = Freshness()
        self._gate = Gate()
        self._links = Links(key, node, self.presence, self._selector, deliver, self._gate.ring)
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._lock = threading.Lock()
        self._wanted: tuple[Peer, ...] | None = None
        """Whom to watch from the next turn on; None if nothing has changed. It and the next five: under the lock."""

        self._near: tuple[Peer, ...] = ()
        self._version = 0
        self._sequence = 0
        self._closing = False
        self._closed = False
        self._healthy = False

    @property
    def healthy(self) -> bool:
        """There are neighbours and all links to them are up, as of the thread's last turn."""
        return self._healthy

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def ring(self, peers: Iterable[Peer], version: int) -> None:
        """Tell ``peers`` that there is something new, ``version`` of the register; lost for those it does not reach."""
        with self._lock:
            if self._closing:
                return
            self._version = max(version, self._version)
            # The clock also counts while the machine sleeps; so it only grows in the life of one incarnation.
            self._sequence = max(self._sequence + 1, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
            bell = encode(self._key, Message(Kind.BELL, self._node, self._sequence, max(version, 0)))
            for peer in peers:
                if peer.node != self._node and sockets.valid(peer.address, peer.port):
                    self._send(bell, peer)

    def watch(self, ring: Sequence[Peer], version: int) -> None:
        """Keep links to our neighbours in ``ring``, a round's members in rank order, and to nobody else.

        ``version`` of the register is what we know, and is told in pulses. Members without a port, or with an address
        that is not numeric, are left out of the ring; who is not in it itself watches nobody.
        """
        able = [peer for peer in ring if sockets.valid(peer.address, peer.port)]
        own = [index for index, peer in enumerate(able) if peer.node == self._node]
        near = tuple(able[index] for index in linked(own[0], len(able))) if own else ()
        with self._lock:
            if near == self._near and version <= self._version:
                return
            self._near = self._wanted = near
            self._version = max(version, self._version)
        self._wake()

    def close(self) -> None:
        """Say goodbye and end; the port stays open as long as another process holds `presence`. Fine if repeated."""
        with self._lock:
            self._closing = True
        self._wake()
        if self._thread.is_alive():
            if self._thread is not threading.current_thread():
                self._thread.join()
        else:
            self._shut()

    def _send(self, bell: bytes, peer: Peer) -> None:
        family = sockets.family(peer.address) or socket.AF_INET
        with contextlib.suppress(OSError):
            if family not in self._senders:
                self._senders[family] = sockets.datagrams(family)
            self._senders[family].sendto(bell, (peer.address, peer.port))

    def _wake(self) -> None:
        with self._lock:
            if not self._closed:  # or the descriptor may be another's
                os.eventfd_write(self._alarm, 1)

    # The thread

    def _run(self) -> None:
        self._selector.register(self._bells, selectors.EVENT_READ, self._hear_bells)
        self._selector.register(self._alarm, selectors.EVENT_READ, self._hear_alarm)
        try:
            while not self._closing:
                try:
                    self._turn()
                except OSError:
                    time.sleep(_TROUBLE)
        finally:
            self._healthy = False
        self._shut()  # not after a mistake of ours: a port that is closed would say that the agent is dead

    def _turn(self) -> None:
        dues = [due for due in (self._links.due, self._gate.due) if due is not None]
        events = self._selector.select(max(0.0, min(dues) - time.monotonic()) if dues else None)
        now = time.monotonic()
        for key, _ in events:
            key.data(now)
        self._links.know(self._version)
        self._links.turn(now)
        version = self._gate.passed(now)
        if version is not None:
            self._deliver(Rung(version))
        self._healthy = self._links.healthy

    def _hear_alarm(self, now: float) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._alarm)
        with self._lock:
            wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self._links.watch(wanted, now)

    def _hear_bells(self, now: float) -> None:
        for _ in range(_DATAGRAMS):
            try:
                data = self._bells.recv(LONGEST + 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # of an earlier datagram that we sent
                continue
            bell = parse(self._key, data)
            known = bell and bell.kind is Kind.BELL and bell.sender != self._node
            if bell and known and self._freshness.fresh(bell.sender, bell.sequence):
                self._links.told(bell.version)
                self._gate.ring(bell.version)

    def _shut(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._links.close()
            self._selector.close()
            self.presence.close()  # never shut down: that would end it for all who hold it
            for sock in self._senders.values():
                sock.close()
            os.close(self._alarm)
