"""The history of a run as text."""

import time
from collections.abc import Iterator

from hpcelastic.api.run import Run
from hpcelastic.protocol.events import (
    AgentEnded,
    AgentRestarted,
    AgentStarted,
    CheckpointFailed,
    Fenced,
    HangExamined,
    HardwareFound,
    LoggedEvent,
    StateChanged,
    StragglersFound,
    UnknownEvent,
    WorkerEnded,
    WorkersStarted,
)
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
    last_version = 0
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
        if text:
            yield logged, text


def _describe(logged: LoggedEvent) -> str:
    """Return the text of an event; empty if the history leaves it out."""
    node = logged.node
    match logged.event:
        case StateChanged(phase=phase, round=round, reason=reason):
            return f"{phase.value:9} round {round}: {reason}"
        case AgentStarted():
            return f"{node} starts"
        case AgentRestarted(reason=reason):
            return f"{node}: its agent died ({reason}) and was restarted"
        case WorkersStarted(pids=pids, world_size=world_size, round=round):
            return f"{node} runs rank {', '.join(map(str, sorted(pids)))} of {world_size} in round {round}"
        case AgentEnded() | Fenced():
            return f"{node}: {logged.event.kind}"
        case WorkerEnded(rank=rank, exit_code=exit_code, mark=mark) as ended if exit_code != 0:
            last = f", {ended.mark_age:.1f} s after its last mark: {mark} {ended.mark_value}" if mark else ""
            return f"{node}: rank {rank} ended with {exit_code}{last}"
        case HangExamined(round=round, text=text, action=action) if action != "none":
            return f"{node}: no progress in round {round}: {text} ({action})"
        case StragglersFound(round=round, text=text):
            return f"{node}: round {round}: {text}"
        case HardwareFound(check=check, seen=seen, severity=severity):
            return f"{node}: {check}: {seen} ({severity})"
        case CheckpointFailed(step=step, error=error):
            return f"{node}: the checkpoint of step {step} is not saved: {error}"
        case UnknownEvent(name=name, fields=fields):
            values = ", ".join(f"{field}: {value}" for field, value in fields.items())
            return f"{node}: {name}" + (f" ({values})" if values else "")
    return ""
