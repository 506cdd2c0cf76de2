"""What the benchmarks' workers have noted."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_PACE = 0.01
"""Seconds between two looks; what is waited for carries its own time."""


@dataclass(frozen=True)
class FirstStep:
    """The first step of one worker; times by the monotonic clock."""

    time: float
    up: float
    """When its script began to run, what it imports first being there."""

    world: int
    rank: int
    pid: int


def first_steps(notes: Path) -> list[FirstStep]:
    """The first step of every worker that has made one."""
    lines = [line for path in notes.glob("*.jsonl") if (line := path.open().readline()).endswith("\n")]
    return [FirstStep(**json.loads(line)) for line in lines]


def new_world(notes: Path, world: int, since: float, timeout: float) -> list[FirstStep] | None:
    """The first steps of ``world`` workers that are new since ``since``, once all are made; None after ``timeout``."""

    def look() -> list[FirstStep] | None:
        fresh = [step for step in first_steps(notes) if step.time > since and step.world == world]
        return fresh if len(fresh) >= world else None

    return until(look, since + timeout)


def sleepers(notes: Path) -> dict[int, float]:
    """When each worker that sleeps began to, by its process id."""
    found = {int(path.stem): path.read_text() for path in notes.glob("*.up")}
    return {pid: float(text) for pid, text in found.items() if text}


def until(look: Callable[[], T | None], deadline: float) -> T | None:
    """What ``look`` returns once it returns something; None once the monotonic clock has passed ``deadline``."""
    while True:
        found = look()
        if found is not None or time.monotonic() > deadline:
            return found
        time.sleep(_PACE)
