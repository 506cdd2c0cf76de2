"""The event loop of an agent: it waits for file descriptors and calls their handlers."""

import contextlib
import selectors
from collections.abc import Callable

from hpcelastic.ipc.readiness import LONGEST, Source


class EventLoop:
    """A selector whose entries carry their handlers."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, source: Source | int, handler: Callable[[], None]) -> None:
        """Call ``handler`` whenever ``source`` is readable."""
        self._selector.register(source, selectors.EVENT_READ, handler)

    def unwatch(self, source: Source | int) -> None:
        """Stop watching ``source``. Nothing happens if it is not watched."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(source)

    def turn(self, timeout: float | None, first: Source) -> None:
        """Wait up to ``timeout`` seconds, then handle all events; that of ``first`` before the others."""
        events = self._selector.select(None if timeout is None else min(timeout, LONGEST))
        for key, _ in sorted(events, key=lambda event: event[0].fileobj is not first):
            if self._selector.get_map().get(key.fd) is key:  # an event may end what the next one is about
                key.data()
