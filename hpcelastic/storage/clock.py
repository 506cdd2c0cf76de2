"""The clock of a filesystem, measured by new files: the server sets their times.

Only the time of a file that was just created counts. Attributes of older files may come from a cache, and a client may
set the time of a file that it writes to.
"""

import contextlib
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.storage.files import DRAFT_PREFIX

TICK = 0.01
"""The longest time in seconds by which a filesystem's clock advances at once."""


@dataclass(frozen=True)
class ClockOffset:
    """The bounds of the filesystem's time, in seconds since the epoch, minus the seconds since the node's start."""

    least: float
    most: float
    measured: float
    """The time of the measurement, in seconds since the node's start."""

    def time(self, up: float) -> float:
        """Return the filesystem's time, in seconds since the epoch, at ``up`` seconds since the node's start."""
        return up + (self.least + self.most) / 2

    def agrees_with(self, other: "ClockOffset") -> bool:
        """Return whether both may be right."""
        return self.least <= other.most and other.least <= self.most


def offset_of(created: float, before: float, after: float) -> ClockOffset:
    """Return the offset that follows from a file.

    The filesystem gave it the time ``created``, between the times ``before`` and ``after`` since the node's start.
    """
    return ClockOffset(created - after, created + TICK - before, before)


def measure_offset(directory: Path) -> ClockOffset:
    """Measure the offset with a new file in ``directory``, which is removed. Raises OSError."""
    probe = directory / f"{DRAFT_PREFIX}clock.{secrets.token_hex(8)}"
    before = now()
    fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        after = now()
        return offset_of(os.fstat(fd).st_ctime, before, after)
    finally:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(probe)


def now() -> float:
    """Return the seconds since the node's start."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
