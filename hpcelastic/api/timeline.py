"""The history of a run as text."""

import time
from collections.abc import Iterator

from hpcelastic.accounting.descriptions import describe
from hpcelastic.api.run import Run
from hpcelastic.protocol.events import AgentStarted, LoggedEvent, StateChanged, StragglersFound, WorkersStarted
from hpcelastic.storage.events import read_events
from hpcelastic.storage.paths import RunPaths

_WIDTH = 100
"""Characters of a line, without the time. `hpcelastic status` and the logs show the full text."""


def timeline(run: Run) -> list[str]:
    """Return a line with the time for each change of the run's state and each start and end of a node."""
    events = read_events(RunPaths(run.directory).events)
    start = events[0].time if events else time.time()
    return [f"{logged.time - start:8.2f} s  {_short(text)}" for logged, text in _describe_events(events)]


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _describe_events(events: list[LoggedEvent]) -> Iterator[tuple[LoggedEvent, str]]:
    last_version, last_state = 0, ""
    slow: set[tuple[int, int]] = set()
    for logged in events:
        if isinstance(logged.event, StateChanged):
            if logged.event.version <= last_version:
                continue
            last_version = logged.event.version
        if isinstance(logged.event, StragglersFound):  # a straggler that comes and goes is shown once in a round
            ranks = {(logged.event.round, rank) for rank in logged.event.ranks}
            if ranks <= slow:
                continue
            slow |= ranks
        text = _describe(logged)
        if isinstance(logged.event, StateChanged):  # another version may only differ in what other events tell
            text, last_state = "" if text == last_state else text, text
        if text:
            yield logged, text


def _describe(logged: LoggedEvent) -> str:
    """Return the text of an event; empty if the history leaves it out."""
    text = describe(logged.event)
    if isinstance(logged.event, StateChanged) or not text:
        return text
    return (
        f"{logged.node} {text}" if isinstance(logged.event, AgentStarted | WorkersStarted) else f"{logged.node}: {text}"
    )
