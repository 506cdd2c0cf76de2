"""A handler of torch's events that keeps them, such as a dashboard registers."""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

from torch.distributed.elastic import events
from torch.distributed.elastic.events import handlers


class Recorded(logging.Handler):
    """Keeps the events that it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.events.append(json.loads(record.getMessage()))

    @property
    def states(self) -> list[str]:
        """The node states of events of a rendezvous."""
        return [event["node_state"] for event in self.events]


Register = Callable[[str], Recorded]


@contextlib.contextmanager
def registration() -> Iterator[Register]:
    """Yield a function that registers a handler under a name. All are removed at the end."""
    before = dict(handlers._log_handlers)

    def register(name: str) -> Recorded:
        events._events_loggers.pop(name, None)
        logging.getLogger(f"torchelastic-events-{name}").handlers.clear()
        recorded = handlers._log_handlers[name] = Recorded()
        return recorded

    yield register
    for name in handlers._log_handlers:
        events._events_loggers.pop(name, None)
        logging.getLogger(f"torchelastic-events-{name}").handlers.clear()
    handlers._log_handlers.clear()
    handlers._log_handlers.update(before)
