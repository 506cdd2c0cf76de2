"""Somebody is told what happens to an agent, in a thread of its own: what that takes never holds the agent up."""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from hpcelastic.agent.session import Observe

_log = logging.getLogger(__name__)


class Listener(Protocol):
    """Is told of events, and of time that passes while it wants to be."""

    @property
    def ticks(self) -> bool: ...

    def tick(self) -> None: ...

    def take(self, moment: float, event: str, fields: Mapping[str, Any]) -> None:
        """``moment`` is when it happened, in seconds of time.monotonic()."""


def tell(function: Callable[..., None], *args: Any) -> None:
    """Call ``function``; what it raises is logged."""
    try:
        function(*args)
    except Exception:
        _log.exception("a handler of events or metrics has failed")


@contextlib.contextmanager
def listening(listener: Listener, pace: float) -> Iterator[Observe]:
    """Within the block ``listener`` is told of each event, and every ``pace`` seconds in which none comes, of that.

    At the end all that has happened has been told.
    """
    waiting: queue.Queue[tuple[float, str, Mapping[str, Any]] | None] = queue.Queue()

    def run() -> None:
        while True:
            try:
                event = waiting.get(timeout=pace if listener.ticks else None)
            except queue.Empty:
                tell(listener.tick)
                continue
            if event is None:
                return
            tell(listener.take, *event)

    thread = threading.Thread(target=run, name="telemetry", daemon=True)
    thread.start()
    try:
        yield lambda event, fields: waiting.put((time.monotonic(), event, dict(fields)))
    finally:
        waiting.put(None)
        thread.join()
