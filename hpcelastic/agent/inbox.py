"""A queue in which other threads and signal handlers leave messages for the main thread."""

import contextlib
import socket
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """A FIFO queue of messages. For select(2) it is readable when there are new ones."""

    def __init__(self) -> None:
        self._messages: deque[T] = deque()
        self._wakeup, self._end = socket.socketpair()

    def fileno(self) -> int:
        return self._end.fileno()

    def deliver(self, message: T) -> None:
        """Append a message. It returns at once and may be called from any thread or signal handler."""
        self._messages.append(message)
        self.wake()

    def wake(self) -> None:
        """Make the inbox readable, even without a message."""
        with contextlib.suppress(BlockingIOError):
            self._wakeup.send(b"!", socket.MSG_DONTWAIT)

    def clear_wakeups(self) -> None:
        """Make the inbox unreadable until the next message."""
        self._end.recv(4096)

    def __bool__(self) -> bool:
        return bool(self._messages)

    def waiting(self) -> list[T]:
        """Return all messages, which stay."""
        return list(self._messages)

    def take(self) -> T:
        """Remove and return the oldest message. Raises IndexError if there is none."""
        return self._messages.popleft()
