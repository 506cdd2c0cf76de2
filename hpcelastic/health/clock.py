"""Steps of a node's clock while its workers train. The run does not depend on the clock, but the times in logs do."""

import time
from collections.abc import Callable, Iterator

from hpcelastic.health.hardware import HardwareFinding, HardwareSeverity

_STEP = 1.0
"""Seconds. A time service slews the clock by less than this between two looks."""


class ClockSteps:
    """Compares the clock with one that is never set."""

    def __init__(self, clock: Callable[[], float] = time.time, steady: Callable[[], float] | None = None) -> None:
        self._clock, self._steady = clock, steady or (lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
        self._offset = self._clock() - self._steady()

    def look(self) -> Iterator[HardwareFinding]:
        """Yield a step of more than a second."""
        offset = self._clock() - self._steady()
        step, self._offset = offset - self._offset, offset
        if abs(step) > _STEP:
            direction = "forwards" if step > 0 else "backwards"
            yield HardwareFinding("clock", f"it was set {direction} by {abs(step):.1f} s", HardwareSeverity.NOTE)
