"""A TCP connection to another agent: a non-blocking socket, and the session that runs over it."""

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass

from hpcelastic.network.channel import Session
from hpcelastic.network.messages import Message
from hpcelastic.network.transfer import Transfer

_CHUNK = 4096
_MAX_UNSENT = 4096
"""Bytes that may wait until the kernel accepts them. Beyond this, heartbeats are dropped."""


@dataclass(frozen=True)
class Received:
    """The result of one read."""

    messages: tuple[Message, ...] = ()
    ended: bool = False
    reset: bool = False
    """True if a reset or a missing acknowledgement ended the connection, not a message or an orderly end."""


class Connection:
    """One connection, dialled or accepted at ``started``."""

    def __init__(self, sock: socket.socket, session: Session, started: float) -> None:
        self.sock = sock
        self.session = session
        self.started = started
        self.closed = False
        self.registered = False
        """True once the selector watches it for reading."""

        self.on_readable: Callable[[Connection, float], None] = _ignore
        """The reader of the connection. It changes with the use of the connection."""

        self._unsent = b""

    def receive(self) -> Received:
        """Read what has arrived."""
        try:
            data = self.sock.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return Received()
        except OSError:
            return Received(ended=True, reset=True)
        if not data:
            return Received(ended=True)
        messages, reply, valid = self.session.receive(data)
        if reply:
            self._send(reply)
        return Received(tuple(messages), ended=not valid)

    def send_hello(self) -> None:
        self._send(self.session.hello())

    def send_heartbeat(self, version: int) -> None:
        """Send a heartbeat; drop it if the peer does not read."""
        if len(self._unsent) < _MAX_UNSENT:
            self._send(self.session.heartbeat(version))

    def close_gracefully(self) -> None:
        """Tell the peer that the connection ends on purpose, and close it."""
        if not self.closed:
            if self.session.established:
                self._send(self.session.close())
            self.close()

    def close(self) -> None:
        self.closed = True
        self.sock.close()

    def to_transfer(self) -> Transfer:
        """Return the transfer that the peer has started. It has the socket; this connection counts as closed.

        Raises TransferError.
        """
        self.closed = True
        return Transfer(self.sock, self.session.transfer_key, self.session.peer or "", initiator=False)

    def _send(self, data: bytes) -> None:
        self._unsent += data
        with contextlib.suppress(OSError):  # the next read reports the error
            self._unsent = self._unsent[self.sock.send(self._unsent) :]


def preferred(new: Connection, old: Connection) -> bool:
    """True if ``new`` replaces ``old``.

    Both ends keep the connection that the node with the lesser name dialled, and the later one of the same node.
    """
    initiators = new.session.initiator or "", old.session.initiator or ""
    return initiators[0] <= initiators[1]


def _ignore(connection: Connection, now: float) -> None:
    """Do nothing: the connection has no reader yet."""
