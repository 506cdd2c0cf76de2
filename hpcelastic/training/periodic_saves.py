"""The checkpoints that are saved during a training: every so many steps, or as often as is best."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpcelastic.backends.connect import creation_time, open_backend
from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import decode
from hpcelastic.protocol.state import Cause
from hpcelastic.storage.paths import RunPaths

from .checkpoints import Checkpoints
from .context import Context
from .device_groups import time_without_pending_work
from .periodic_snapshots import PeriodicSnapshots
from .process_groups import gather_objects
from .recovery import Held
from .save_interval import FailureHistory, best_interval, description, differ, smoothed

log = logging.getLogger(__name__)


class PeriodicSaves:
    """The saves of one process, and its snapshots. ``every`` is a number of steps, 0 for none, or ``auto``.

    With ``auto`` the interval follows from the time for which a save stops the training, and from the failures of the
    run; see `hpcelastic.training.save_interval`. A save is not begun while the last one is unpublished. Rank 0 decides
    and saves. If the state is ``sharded``, all ranks save.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        every: int | Literal["auto"],
        snapshot: int | Literal["auto"] = 0,
        sharded: bool = False,
    ) -> None:
        if every != "auto" and (isinstance(every, str) or every < 0):
            raise ValueError(f"save_every is {every!r}; it must be 'auto', or 0 or more steps")
        if every and checkpoints is None:
            raise ValueError("save_every needs checkpoints=Checkpoints()")
        self._checkpoints, self._every, self.sharded = checkpoints, every, sharded
        self.snapshots = PeriodicSnapshots(checkpoints, snapshot, sharded)
        self._saved: Held | None = None
        """The last state that this process has saved."""

        self._last: tuple[int, float] | None = None
        """The step of the last save, and the time of its end; at first those of the beginning. None if not needed."""

        self._cost: float | None = None
        """Seconds for which a save stops the training."""

        self._history, self._round_began = FailureHistory(), time.monotonic()
        """The failures of the run when the round began."""

        self._announced: float | None = None
        """The interval that was last printed."""

    def begin_round(self, worker: Context, step: int) -> None:
        """Note that a round begins with the state after ``step`` steps. Every rank calls this."""
        self.snapshots.begin_round(worker, step)
        if self._every != "auto" or worker.rank != 0:
            return
        now = time.monotonic()
        self._last = self._last or (step, now)
        self._history = self._history.after(now - self._round_began)
        self._round_began = now
        if worker.run_dir is not None and worker.round:
            try:
                self._history = failure_history(worker.run_dir)
            except (StoreError, OSError) as error:
                log.warning("the interval between checkpoints does not consider recent failures: %s", error)

    def is_due(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Return whether the state after ``step`` steps shall be saved: it is time, or it has the best's metric.

        If the state is sharded, every rank calls this, and gets the answer of rank 0.
        """
        due = self._is_due(step, metrics)
        if (
            self.sharded
            and self._checkpoints is not None
            and (self._every == "auto" or self._checkpoints.retention.best)
        ):
            return gather_objects(due)[0]
        return due

    def _is_due(self, step: int, metrics: Mapping[str, float]) -> bool:
        if self._checkpoints is None:
            return False
        if self._checkpoints.retention.best in metrics:
            return True
        if self._every != "auto":
            return bool(self._every) and step % self._every == 0
        if self._last is None:  # another rank than 0, which does not decide
            return False
        now = time.monotonic()
        elapsed = now - self._last[1]
        return elapsed >= best_interval(self._cost, self._history_at(now)) and not self._checkpoints.is_saving()

    def save(
        self, held: Held, state: Callable[[], dict[str, Any]], metrics: Mapping[str, float], *, wait: bool
    ) -> None:
        """Save the state ``held``, unless it is saved already; in the background, or ``wait`` until it is on disk."""
        if self._checkpoints is None:
            return
        saved = self._saved == held
        if saved and wait:
            saved = self._checkpoints.flush()
        if self.sharded:
            saved = all(gather_objects(saved))
        if saved:
            return
        has_metric = self._checkpoints.retention.best in metrics  # not each state has it
        began = time_without_pending_work()
        self._checkpoints.save(held.step, state(), wait=wait, metrics=metrics if has_metric else None)
        self._saved = held
        if self._last is not None:
            ended = time.monotonic()
            if not wait:
                self._measure(held.step, self._last, began, ended)
            self._last = held.step, ended

    def _measure(self, step: int, before: tuple[int, float], began: float, ended: float) -> None:
        """Note the cost of a save, and print the interval if it has changed. ``before`` is the last save."""
        self._cost = smoothed(self._cost, ended - began)
        last_step, last = before
        if step <= last_step:
            return
        history = self._history_at(ended)
        # If steps or publications take longer than the best interval, the time since the last save is the interval.
        interval = max(best_interval(self._cost, history), began - last)
        if self._announced is None or differ(self._announced, interval):
            self._announced = interval
            print(description(interval, (began - last) / (step - last_step), self._cost, history), flush=True)

    def _history_at(self, now: float) -> FailureHistory:
        return self._history.after(now - self._round_began)


@dataclass(frozen=True)
class _Spent:
    """The part of `hpcelastic.protocol.state.State` that is needed here."""

    spent: Mapping[str, int] = field(default_factory=dict)


def failure_history(run_dir: Path) -> FailureHistory:
    """Read the age and the failures of a run: the rounds that the loss of a worker or of a node has ended.

    The age is the difference between the clocks of this node and of the filesystem, which is exact enough here.
    """
    paths = RunPaths(run_dir)
    with contextlib.closing(open_backend(paths)) as backend:
        spent = decode(_Spent, backend.register(writer="").read().value or {}).spent
    failures = sum(spent.get(cause.value, 0) for cause in (Cause.WORKER, Cause.NODE))
    return FailureHistory(max(0.0, time.time() - creation_time(paths)), failures)
