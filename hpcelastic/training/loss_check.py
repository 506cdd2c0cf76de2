"""Checks of the loss: a state that is poisoned must not be saved, and training returns to an older one."""

import math
import statistics
from collections import deque
from typing import NoReturn, SupportsFloat

from hpcelastic.errors import PoisonedState
from hpcelastic.ipc.marks import MarkKind

from .checkpoints import Checkpoints
from .control_page import mark
from .rollback import current_rollback

_HISTORY, _ENOUGH = 100, 20
"""Number of the newest losses with which a loss is compared, and the smallest number of them."""


class LossCheck:
    """Checks each loss of this rank: it must be finite, and at most ``spike`` times the median of the last 100.

    With ``spike=None`` only losses that are not finite are found. If a loss is bad, `PoisonedState` is raised. This
    process then ends, and all ranks continue from a state that is older than the newest one, as the agents decide: from
    the newest checkpoint; if the loss is bad in the same step again, from the checkpoint before that; then without the
    node of this rank. After that, the run ends.

    To read the loss, the CPU waits for the GPU.

    Examples:
        >>> check = LossCheck(Checkpoints(), spike=10.0)
        >>> for step, loss in enumerate([2.5, 2.4, float("nan")]):
        ...     check(loss, step)
        Traceback (most recent call last):
            ...
        hpcelastic.errors.PoisonedState: the loss is nan after 2 steps; there is no checkpoint to return to
    """

    def __init__(self, checkpoints: Checkpoints | None, *, spike: float | None = None) -> None:
        if spike is not None and not spike > 1:
            raise ValueError(f"spike is {spike}; it must be a factor of more than 1, or None")
        self._checkpoints, self._spike = checkpoints, spike
        self._losses: deque[float] = deque(maxlen=_HISTORY)

    def __call__(self, loss: SupportsFloat, step: int) -> None:
        """Check ``loss``, a number or a tensor. ``step`` is the number of steps that were complete before it."""
        value = float(loss.detach() if hasattr(loss, "detach") else loss)
        problem = self._problem(value)
        if not problem:
            self._losses.append(abs(value))
            return
        demand_rollback(f"the loss is {problem}", step, self._checkpoints)

    def forget(self) -> None:
        """Forget all losses so far: those that follow are of another size."""
        self._losses.clear()

    def _problem(self, value: float) -> str:
        """Describe what is wrong with a loss; empty if nothing is."""
        if not math.isfinite(value):
            return str(value)
        if self._spike is None or len(self._losses) < _ENOUGH:
            return ""
        median = statistics.median(self._losses)
        if not median or abs(value) <= self._spike * median:
            return ""
        return f"{value:.4g}, more than {self._spike:g} times {median:.4g}, the median of the last {len(self._losses)},"


def demand_rollback(problem: str, step: int, checkpoints: Checkpoints | None) -> NoReturn:
    """Raise `PoisonedState`, and let training return to an older state if ``checkpoints`` has one on disk.

    ``step`` is the number of complete steps at which ``problem`` was found.
    """
    names = [] if checkpoints is None else checkpoints.files().permitted()
    steps = [name.step for name in names if name.step <= step]
    target, last = next(iter(steps), None), current_rollback()
    if last is not None and last.failed_step == step:  # that checkpoint did not help, so the one before it may
        target = next((each for each in steps if each < last.step), last.step)
    consequence = "there is no checkpoint to return to"
    if target is not None:
        mark(MarkKind.POISONED, step)
        mark(MarkKind.ROLLBACK, target)
        consequence = f"training returns to the checkpoint of step {target}"
    raise PoisonedState(f"{problem} after {step} step{'s' * (step != 1)}; {consequence}")
