"""The history of a run as text."""

import time
from collections.abc import Iterator
from typing import Any

from hpcelastic.api.run import Run
from hpcelastic.storage.events import read_events
from hpcelastic.storage.paths import RunPaths

_WIDTH = 100
"""Characters of a line, without the time. `hpcelastic status` and the logs show the full text."""


def timeline(run: Run) -> list[str]:
    """Return a line with the time for each change of the run's state and each start and end of a node."""
    events = read_events(RunPaths(run.directory).events)
    start = events[0]["time"] if events else time.time()
    return [f"{event['time'] - start:8.2f} s  {_short(text)}" for event, text in _describe_events(events)]


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _describe_events(events: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    last_version = 0
    for event in events:
        kind, node = event["event"], event["node"]
        if kind == "state" and event["version"] > last_version:
            last_version = event["version"]
            yield event, f"{event['phase']:9} round {event['round']}: {event['reason']}"
        elif kind == "agent started":
            yield event, f"{node} starts"
        elif kind == "agent restarted":
            yield event, f"{node}: its agent died ({event['reason']}) and was restarted"
        elif kind == "workers started":
            ranks = ", ".join(sorted(event["pids"], key=int))
            yield event, f"{node} runs rank {ranks} of {event['world_size']} in round {event['round']}"
        elif kind in ("agent ended", "fenced"):
            yield event, f"{node}: {kind}"
        elif kind == "worker ended" and event["exit_code"] != 0:
            yield event, f"{node}: rank {event['rank']} ended with {event['exit_code']}"
