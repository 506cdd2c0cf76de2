"""Where other threads, and handlers of signals, leave messages for the one that acts on them."""

import contextlib
import socket
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Messages in the order in which they came; readable, for select(2), when there are new ones."""

    def __init__(self) -> None:
        self._messages: deque[T] = deque()
        self._bell, self._end = socket.socketpair()

    def fileno(self) -> int:
        return self._end.fileno()

    def deliver(self, message: T) -> None:
        """Leave a message; returns at once, and may be called anywhere."""
        self._messages.append(message)
        self.wake()

    def wake(self) -> None:
        """Be readable, with a message or without."""
        with contextlib.suppress(BlockingIOError):
            self._bell.send(b"!", socket.MSG_DONTWAIT)

    def heard(self) -> None:
        """Be readable no more, until another message comes."""
        self._end.recv(4096)

    def __bool__(self) -> bool:
        return bool(self._messages)

    def take(self) -> T:
        """The message that has waited longest; IndexError if there is none."""
        return self._messages.popleft()
