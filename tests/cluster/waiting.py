"""Waiting for conditions that SLURM does not announce: short polls, a deadline, and an error with evidence."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.cluster.errors import ClusterTimeout

T = TypeVar("T")

POLL_INTERVAL = 0.05  # s


def wait_until(
    what: str, poll: Callable[[], T], good: Callable[[T], object], timeout: float, evidence: Callable[[], str]
) -> T:
    """Call `poll` until `good` accepts its result, and return the result. ClusterTimeout after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not good(seen := poll()):
        if time.monotonic() > deadline:
            raise ClusterTimeout(f"waited {timeout:g} s for {what}; last seen: {seen!r}\n{evidence()}")
        time.sleep(POLL_INTERVAL)
    return seen


def log_tails(directory: Path, lines: int = 15) -> str:
    """Return the last lines of every log in a directory as one text."""
    return "\n".join(f"--- {log.name}\n{_tail(log, lines)}" for log in sorted(directory.glob("*.log")))


def _tail(log: Path, lines: int) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
