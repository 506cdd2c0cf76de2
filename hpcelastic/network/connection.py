"""A TCP connection to another agent: a socket that never blocks, and the session that runs over it."""

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass

from hpcelastic.network.messages import Message
from hpcelastic.network.session import Session

_CHUNK = 4096
_UNSENT = 4096
"""Bytes that may wait for the kernel to take them; pulses beyond are not said."""


@dataclass(frozen=True)
class Received:
    """What came at one reading."""

    messages: tuple[Message, ...] = ()
    ended: bool = False
    reset: bool = False
    """It ended by a reset or for want of any answer, not by a word or in order."""


class Connection:
    """One connection, made or accepted at ``began``."""

    def __init__(self, sock: socket.socket, session: Session, began: float) -> None:
        self.sock = sock
        self.session = session
        self.began = began
        self.closed = False
        self.registered = False
        """Somebody reads it."""

        self.hear: Callable[[Connection, float], None] = _ignore
        """What reads it, which changes with what the connection is used for."""

        self._unsent = b""

    def receive(self) -> Received:
        """What there is to be read now."""
        try:
            data = self.sock.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return Received()
        except OSError:
            return Received(ended=True, reset=True)
        if not data:
            return Received(ended=True)
        messages, reply, sound = self.session.take(data)
        if reply:
            self._send(reply)
        return Received(tuple(messages), ended=not sound)

    def hello(self) -> None:
        self._send(self.session.hello())

    def pulse(self, version: int) -> None:
        """Say that we live; left out where the other does not read."""
        if len(self._unsent) < _UNSENT:
            self._send(self.session.pulse(version))

    def bye(self) -> None:
        """End it on purpose."""
        if not self.closed:
            if self.session.established:
                self._send(self.session.bye())
            self.close()

    def close(self) -> None:
        self.closed = True
        self.sock.close()

    def _send(self, data: bytes) -> None:
        self._unsent += data
        with contextlib.suppress(OSError):  # what is wrong will be read
            self._unsent = self._unsent[self.sock.send(self._unsent) :]


def _ignore(connection: Connection, now: float) -> None:
    """Nobody reads it yet."""
