"""The snapshots that are taken during a training: every so many steps, or as often as they cost little."""

import math
import time
from collections.abc import Callable
from typing import Any, Literal

from .checkpoints import Checkpoints
from .context import Context
from .device_groups import time_without_pending_work
from .process_groups import gather_objects
from .recovery import Held
from .save_interval import smoothed
from .stop import time_left

_COST = 0.005
"""The part of the time for which snapshots may stop the training with ``auto``. The agent, which seals and copies them
meanwhile, slows the training down about as much, so that they cost 1 % in all."""

_LONGEST_WAIT = 60.0
"""Seconds for which the end of a round waits for a snapshot."""


class PeriodicSnapshots:
    """The snapshots of one process. ``every`` is a number of steps, 0 for none, or ``auto``.

    With ``auto`` there are none where ranks on several nodes hold the whole state, because it survives without them.
    The interval follows from the measured time for which a snapshot stops the training. If the state is ``sharded``,
    all ranks take the snapshots, at the same steps. Otherwise rank 0 does.
    """

    def __init__(self, checkpoints: Checkpoints | None, every: int | Literal["auto"], sharded: bool) -> None:
        if every != "auto" and (isinstance(every, str) or every < 0):
            raise ValueError(f"snapshot is {every!r}; it must be 'auto', or 0 or more steps")
        if checkpoints is None and every not in ("auto", 0):
            raise ValueError("snapshot needs checkpoints=Checkpoints()")
        self._checkpoints, self._every, self._sharded = checkpoints, every, sharded
        self._next: int | None = None
        """The step of the next snapshot; None if this process takes none in this round."""

        self._taken: Held | None = None
        self._last: tuple[int, float] | None = None
        """The step of the last snapshot in this round, and the time of its end."""

        self._cost: float | None = None
        """Seconds for which a snapshot stops the training."""

    def begin_round(self, worker: Context, step: int) -> None:
        """Note that a round begins with the state after ``step`` steps. Every rank calls this.

        The first one is due at once, because a node that has had copies may be lost, but not before the first step.
        """
        self._next = self._taken = self._last = None
        if self._checkpoints is None or not self._every or not worker.round:
            return
        if self._every == "auto" and not self._sharded and len(set(gather_objects(worker.node))) > 1:
            return
        if self._sharded or worker.rank == 0:
            self._next = max(step, 1)

    def is_due(self, step: int) -> bool:
        """Return whether it may be time for a snapshot of the state after ``step`` steps."""
        return self._next is not None and step >= self._next

    def take(self, held: Held, state: Callable[[], dict[str, Any]]) -> None:
        """Take a snapshot of the state ``held``, unless it is too early. With ``auto``, the ranks agree on that."""
        assert self._checkpoints is not None
        step, began = held.step, time_without_pending_work()
        self._next = self._agreed(self._earliest(step, began))
        if step < self._next:
            return
        taken, ended = self._checkpoints.snapshot(step, state()), time.monotonic()
        if taken:
            self._taken = held
        if taken or self._cost is None:  # one that is left out costs less
            self._cost = smoothed(self._cost, ended - began)
        self._last = step, ended
        self._next = step + (1 if self._every == "auto" else self._every)

    def keep(self, held: Held, state: Callable[[], dict[str, Any]]) -> bool:
        """Keep the state ``held`` in memory, and wait for that. Return whether all ranks have succeeded.

        Every rank calls this.
        """
        if self._next is None or self._checkpoints is None:
            return False
        kept = self._wait()
        if self._taken != held:
            kept = self._checkpoints.snapshot(held.step, state()) and self._wait()
        return all(gather_objects(kept))

    def _wait(self) -> bool:
        assert self._checkpoints is not None
        return self._checkpoints.is_kept(min(time_left() / 2, _LONGEST_WAIT))

    def _earliest(self, step: int, now: float) -> int:
        """Return the first step whose snapshot is not too early, as far as this rank knows."""
        if self._every != "auto" or self._cost is None or self._last is None or step <= self._last[0]:
            return step
        last_step, last = self._last
        per_step = (now - last) / (step - last_step)
        return last_step + max(1, math.ceil(self._cost / (_COST * max(per_step, 1e-6))))

    def _agreed(self, step: int) -> int:
        return max(gather_objects(step)) if self._sharded and self._every == "auto" else step
