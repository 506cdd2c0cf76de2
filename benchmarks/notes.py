"""The notes of the benchmarks' workers."""

import json
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_POLL_INTERVAL = 0.01
"""Seconds between two polls. It does not affect results, because each note contains its own time."""


_TAIL = 4096
"""Bytes at the end of a file of notes that are read again in each poll."""


@dataclass(frozen=True)
class Step:
    """A step of one worker. Times are those of the monotonic clock."""

    time: float
    world: int
    rank: int
    pid: int
    up: float = 0.0
    """Time at which the script began to run, after its imports; 0 if it is not noted."""

    round: int = 0
    """A number that grows with each change of the world, if the launcher keeps processes; otherwise 0."""


def first_steps(notes: Path) -> list[Step]:
    """Return the first step of every worker that has executed one."""
    return [steps[0] for path in notes.glob("*.jsonl") if (steps := _steps(path))]


def new_world(
    notes: Path, world: int, since: float, timeout: float, before: Collection[Step] = ()
) -> list[Step] | None:
    """Wait until all ranks of a world of ``world`` ranks have stepped after ``since``; None after ``timeout`` seconds.

    Returns the first such step of each process. A process that has made a step of ``before`` must be in a later round.
    """
    rounds = {step.pid: step.round for step in before}

    def poll() -> list[Step] | None:
        fresh: dict[int, Step] = {}
        for step in (step for path in notes.glob("*.jsonl") for step in _steps(path)):
            if step.time > since and step.world == world and step.round > rounds.get(step.pid, -1):
                fresh.setdefault(step.pid, step)
        return [*fresh.values()] if len(fresh) >= world else None

    return until(poll, since + timeout)


def _steps(path: Path) -> list[Step]:
    """Return the first step of a process; the last ones too if its launcher keeps processes."""
    with path.open("rb") as file:
        first = _step(file.readline())
        if first is None or not first.round:
            return [first] if first else []
        file.seek(max(file.tell(), path.stat().st_size - _TAIL))
        found = [_step(line) for line in file.read().splitlines(keepends=True)]
    return [first, *filter(None, found)]


def _step(line: bytes) -> Step | None:
    """Return the step of a line; None if the line is not complete."""
    if not (line.endswith(b"\n") and line.startswith(b"{")):
        return None
    noted = json.loads(line)
    return Step(**{field.name: noted[field.name] for field in fields(Step) if field.name in noted})


def sleepers(notes: Path) -> dict[int, float]:
    """Return the start time of each sleeping worker, by process id."""
    found = {int(path.stem): path.read_text() for path in notes.glob("*.up")}
    return {pid: float(text) for pid, text in found.items() if text}


def until(poll: Callable[[], T | None], deadline: float) -> T | None:
    """Call ``poll`` until its result is not None and return the result; None after ``deadline`` (monotonic clock)."""
    while True:
        found = poll()
        if found is not None or time.monotonic() > deadline:
            return found
        time.sleep(_POLL_INTERVAL)
