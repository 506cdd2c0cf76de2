"""The notes of the benchmarks' workers."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_POLL_INTERVAL = 0.01
"""Seconds between two polls. It does not affect results, because each note contains its own time."""


@dataclass(frozen=True)
class FirstStep:
    """The first step of one worker. Times are those of the monotonic clock."""

    time: float
    up: float
    """Time at which the script began to run, after its imports."""

    world: int
    rank: int
    pid: int


def first_steps(notes: Path) -> list[FirstStep]:
    """Return the first step of every worker that has executed one."""
    lines = [line for path in notes.glob("*.jsonl") if (line := path.open().readline()).endswith("\n")]
    return [FirstStep(**json.loads(line)) for line in lines]


def new_world(notes: Path, world: int, since: float, timeout: float) -> list[FirstStep] | None:
    """Wait for ``world`` first steps after ``since`` and return them; None after ``timeout`` seconds."""

    def poll() -> list[FirstStep] | None:
        fresh = [step for step in first_steps(notes) if step.time > since and step.world == world]
        return fresh if len(fresh) >= world else None

    return until(poll, since + timeout)


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
