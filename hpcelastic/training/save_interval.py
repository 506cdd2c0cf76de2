"""How often a training saves checkpoints, so that the least time is lost to saves and to failures.

Pure. All times are in seconds. Let a save stop the training for C seconds, and let M be the mean time between failures.
Of each interval of W seconds between saves, C seconds are lost to the save, and a failure, which comes once in M
seconds, loses W / 2 seconds on average. The lost part of the time, C / W + W / 2M, is smallest for W = sqrt(2CM).

Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17(9),
1974. J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
Computer Systems 22(3), 2006. Daly's further terms matter only if C is not small compared with M.
"""

import math
from dataclasses import dataclass

_PRIOR_TIME = 86400.0
_PRIOR_FAILURES = 1
"""The prior: a run is as if it had had one failure in a day before its beginning."""

MIN_COST = 0.01
"""The least cost of a save. It limits the rate of saves whose cost is too small to be measured well."""

_NEW_PART = 0.5
"""The part of the last measurement in the smoothed cost."""


@dataclass(frozen=True)
class FailureHistory:
    """The failures of a run up to some time."""

    age: float = 0.0
    """Seconds since the run began."""

    failures: int = 0
    """Number of rounds that a failure has ended."""

    def after(self, seconds: float) -> "FailureHistory":
        """Return the history after ``seconds`` without a failure."""
        return FailureHistory(self.age + seconds, self.failures)

    def mean_time(self) -> float:
        """Return the estimate of the mean time between failures, in seconds."""
        return (self.age + _PRIOR_TIME) / (self.failures + _PRIOR_FAILURES)


def smoothed(cost: float | None, measured: float) -> float:
    """Return the cost of a save from the cost before, if there is one, and the last measurement."""
    return measured if cost is None else cost + _NEW_PART * (measured - cost)


def best_interval(cost: float | None, history: FailureHistory) -> float:
    """Return the seconds between saves. A cost of None, which is not known yet, counts as the least one.

    So the first save comes early, and measures the cost.
    """
    return math.sqrt(2 * max(cost or 0.0, MIN_COST) * history.mean_time())


def differ(first: float, second: float) -> bool:
    """Return whether two intervals differ by more than a factor of 1.5."""
    return max(first, second) > 1.5 * min(first, second)


def description(interval: float, step_time: float, cost: float, history: FailureHistory) -> str:
    """Return a line for people."""
    steps = max(1, round(interval / step_time))
    every = f"{steps} steps" if steps > 1 else "step"
    seconds = f"{cost:.2g}" if cost < 10 else f"{cost:.0f}"
    failures = f"{history.failures} failure{'' if history.failures == 1 else 's'}"
    return (
        f"saving a checkpoint about every {every} ({interval:.0f} s): a save stops training for {seconds} s, "
        f"and {failures} in {history.age / 3600:.1f} h"
    )
