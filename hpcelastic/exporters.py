"""Exporters receive the events of an agent, such as for a metrics service, in a thread of their own.

A slow or failing exporter never delays the agent. A job file names exporters as ``package.module:function``:

    exporters: [metrics:to_statsd]

The agent calls the function once, with an `ExporterContext`. It returns the exporter, a function that is called with
each event:

    def to_statsd(context):
        def export(time: float, event: Event) -> None:
            if isinstance(event, WorkersStarted):
                statsd.gauge(f"{context.run}.world_size", event.world_size)
        return export
"""

import contextlib
import importlib
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hpcelastic.agent.session import Observe
from hpcelastic.errors import ConfigError
from hpcelastic.protocol.events import Event

_log = logging.getLogger(__name__)

_END_TIMEOUT = 5.0
"""Seconds that the exporters of a job file may take at the end of the agent."""


@dataclass(frozen=True)
class ExporterContext:
    """The agent whose events an exporter receives."""

    run: str
    """Name of the run."""

    directory: Path
    """Directory of the run."""

    node: str
    """Name of the node."""


Exporter = Callable[[float, Event], None]
"""A function that is called with an event and with its time, in seconds since the epoch on the node's clock."""


class Listener(Protocol):
    """Receives events."""

    @property
    def ticks(self) -> bool:
        """Whether `tick` is to be called while no event comes."""

    def tick(self) -> None: ...

    def take(self, moment: float, event: Event) -> None:
        """Receive an event that happened at ``moment``, in seconds of time.monotonic()."""


@contextlib.contextmanager
def exporting(
    names: Sequence[str], context: ExporterContext, report: Callable[[str], None], observe: Observe | None = None
) -> Iterator[Observe]:
    """Yield a function that passes each event to the exporters with these names, and to ``observe``.

    ``report`` is called with the first failure of each exporter. Raises ConfigError if an exporter can't be loaded.
    """
    listeners = [_ExporterListener(name, load_exporter(name), context, report) for name in names]
    with contextlib.ExitStack() as stack:
        observers = [stack.enter_context(listening(listener, 0.0, _END_TIMEOUT)) for listener in listeners]

        def pass_on(event: Event) -> None:
            for each in (*observers, *([observe] if observe else [])):
                each(event)

        yield pass_on


def load_exporter(name: str) -> Callable[[ExporterContext], Exporter]:
    """Import the function ``package.module:function``, also from the working directory. Raises ConfigError."""
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        made: Callable[[ExporterContext], Exporter] = getattr(importlib.import_module(module), function)
    except Exception as error:  # a user's module can raise anything on import
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"exporters: {name} can't be loaded ({what}); install its package, or correct it") from error
    return made


class _ExporterListener:
    """Opens an exporter at the first event, and passes all events to it."""

    ticks = False

    def __init__(
        self,
        name: str,
        make: Callable[[ExporterContext], Exporter],
        context: ExporterContext,
        report: Callable[[str], None],
    ) -> None:
        self._name, self._make, self._context, self._report = name, make, context, report
        self._export: Exporter | None = None
        self._failed = False

    def tick(self) -> None: ...

    def take(self, moment: float, event: Event) -> None:
        try:
            if self._export is None:
                make, self._make = self._make, _ignore_events  # called once, also if it fails
                self._export = make(self._context)
            self._export(time.time() - (time.monotonic() - moment), event)
        except Exception as error:
            if not self._failed:
                what = f"{type(error).__name__}: {error}"
                self._report(f"the exporter {self._name} has failed ({what}); its further failures are not reported")
            self._failed = True


def _ignore_events(context: ExporterContext) -> Exporter:
    return lambda at, event: None


def call_handler(function: Callable[..., None], *args: Any) -> None:
    """Call ``function``. An exception is logged."""
    try:
        function(*args)
    except Exception:
        _log.exception("a handler of events or metrics has failed")


@contextlib.contextmanager
def listening(listener: Listener, pace: float, timeout: float | None = None) -> Iterator[Observe]:
    """Yield a function that passes each event to ``listener``, and call `Listener.tick` after ``pace`` s without event.

    At the end of the block, ``listener`` has received all events, unless it takes longer than ``timeout`` seconds.
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

    thread = threading.Thread(target=run, name="listener", daemon=True)
    thread.start()
    try:
        yield lambda event: waiting.put((time.monotonic(), event))
    finally:
        waiting.put(None)
        thread.join(timeout)
