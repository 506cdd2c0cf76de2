"""Passes the events of an agent to a listener in a separate thread, so that a slow listener never delays the agent."""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from hpcelastic.agent.session import Observe
from hpcelastic.protocol.events import Event

_log = logging.getLogger(__name__)


class Listener(Protocol):
    """Receives events."""

    @property
    def ticks(self) -> bool:
        """Whether `tick` is to be called while no event comes."""

    def tick(self) -> None: ...

    def take(self, moment: float, event: Event) -> None:
        """Receive an event that happened at ``moment``, in seconds of time.monotonic()."""


def call_handler(function: Callable[..., None], *args: Any) -> None:
    """Call ``function``. An exception is logged."""
    try:
        function(*args)
    except Exception:
        _log.exception("a handler of events or metrics has failed")


@contextlib.contextmanager
def listening(listener: Listener, pace: float) -> Iterator[Observe]:
    """Yield a function that passes each event to ``listener``, and call `Listener.tick` after ``pace`` s without event.

    At the end of the block, ``listener`` has received all events.
    """
    waiting: queue.Queue[tuple[float, Event] | None] = queue.Queue()

    def run() -> None:
        while True:
            try:
                item = waiting.get(timeout=pace if listener.ticks else None)
            except queue.Empty:
                call_handler(listener.tick)
                continue
            if item is None:
                return
            call_handler(listener.take, *item)

    thread = threading.Thread(target=run, name="telemetry", daemon=True)
    thread.start()
    try:
        yield lambda event: waiting.put((time.monotonic(), event))
    finally:
        waiting.put(None)
        thread.join()
