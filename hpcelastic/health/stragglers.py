"""Finds stragglers: ranks that the others of a round wait for in each step.

Pure. All ranks of a round make the same number of steps in the same time. A rank works for a part of this time, its
work fraction, and waits for other ranks in the rest. So the ratio of two work fractions is the ratio of the time that
two ranks work in one step.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_STANDARD_ERRORS = 2.0
"""A rank is slow only if its work fraction exceeds the threshold by so many standard errors, because it is sampled."""

_HYSTERESIS = 0.5
"""A rank that was found stays one until its excess over the median is below this part of the threshold's."""


@dataclass(frozen=True)
class WorkFraction:
    """The part of the time in which a rank works, and does not wait for other ranks."""

    rank: int
    node: str
    worked: float
    """From 0 to 1."""

    samples: int
    """Number of samples from which the fraction was estimated."""

    @property
    def standard_error(self) -> float:
        """The standard error of the fraction."""
        spread = max(self.worked * (1 - self.worked), 1 / self.samples)  # a fraction of 0 or 1 is not exact either
        return math.sqrt(spread / self.samples)


@dataclass(frozen=True)
class Straggler:
    """A rank that the others wait for in each step."""

    rank: int
    node: str
    worked: float
    median: float
    """The median of the fractions of all ranks."""

    @property
    def ratio(self) -> float:
        """The time that the rank works in a step, divided by that of the median rank."""
        return self.worked / max(self.median, 1e-3)

    @property
    def text(self) -> str:
        """The finding in one line."""
        return (
            f"rank {self.rank} on {self.node} is {self.ratio:.2f} times slower than the median rank: it works "
            f"{self.worked:.0%} of the time, the median rank {self.median:.0%}, and waits for others in the rest"
        )


def stragglers(fractions: Sequence[WorkFraction], threshold: float, known: Collection[int] = ()) -> list[Straggler]:
    """Return the ranks that work longer than ``threshold`` times the median in each step, the slowest first.

    ``known`` are the ranks that were found before.

    Examples:
        >>> fractions = [WorkFraction(rank, "n0", worked, 400) for rank, worked in enumerate((0.7, 0.72, 0.98))]
        >>> [found.rank for found in stragglers(fractions, 1.2)]
        [2]
    """
    if len(fractions) < 2:
        return []
    median = sorted(fraction.worked for fraction in fractions)[(len(fractions) - 1) // 2]
    found = []
    for fraction in fractions:
        # A rank that was found must not vanish and appear again by chance.
        factor = 1 + (threshold - 1) * (_HYSTERESIS if fraction.rank in known else 1.0)
        error = 0.0 if fraction.rank in known else _STANDARD_ERRORS * fraction.standard_error
        if fraction.worked - error > factor * median:
            found.append(Straggler(fraction.rank, fraction.node, fraction.worked, median))
    return sorted(found, key=lambda each: (-each.worked, each.rank))
