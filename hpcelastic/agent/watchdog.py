"""The watchdog of a node: notices workers that make no progress.

It reads the marks that workers write, and the numbers of their collectives. It counts only time in which the agent
itself runs, so a suspended or overloaded machine causes no alarm.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hpcelastic.agent.guard_main import boottime
from hpcelastic.agent.progress import STEPS, WorkerProgress
from hpcelastic.agent.settings import HangSettings
from hpcelastic.agent.stacks import WorkersOfRound
from hpcelastic.agent.worker import Worker
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.worker import collective_watch
from hpcelastic.worker.collective_watch import GroupCount, Samples

_CHECKS = 40
"""Number of checks within the shortest limit. One more is made when a limit ends."""

_MIN_INTERVAL, _MAX_INTERVAL = 0.02, 0.5


@dataclass(frozen=True)
class Overdue:
    """Workers of a round that have made no progress for about as long as they may."""

    round: int
    rank: int
    """The rank of the first of them."""

    limit: float
    """Seconds for which it may make no progress."""

    left: float
    """Seconds until it has made none for so long."""

    has_steps: bool
    """Whether it writes a mark at each step."""


class Watchdog:
    """Watches the workers of this node, whose seats ``control_page`` has. ``clock`` returns seconds."""

    def __init__(
        self, settings: HangSettings, control_page: ControlPage, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._control_page, self._clock = settings, control_page, clock
        seats = range(control_page.seats)
        self._counts = [os.memfd_create("hpcelastic-collectives", os.MFD_CLOEXEC) for _ in seats]
        self._round = 0
        self._progress: dict[int, WorkerProgress] = {}
        """The progress of the workers of the round, by local rank."""

        self._checked_at = clock()

    def close(self) -> None:
        """Release the memory."""
        for fd in self._counts:
            os.close(fd)

    @property
    def variables(self) -> tuple[str, ...]:
        """The path of the memory for the numbers of each worker's collectives, by local rank."""
        return tuple(f"/proc/{os.getpid()}/fd/{fd}" for fd in self._counts)

    def seconds_left(self) -> float | None:
        """Return the seconds until the next check; None if there is nothing to watch."""
        interval = self._interval()
        return None if interval is None else max(0.0, self._checked_at + self._pause(interval) - self._clock())

    def progress(self, worker: Worker) -> WorkerProgress:
        """Return the progress of a worker of the round."""
        return self._progress.get(worker.local_rank) or WorkerProgress(self._settings)

    def collectives(self, worker: Worker) -> tuple[GroupCount, ...]:
        """Return the numbers of collectives that a worker of the round has begun."""
        return collective_watch.read(self._counts[worker.local_rank], self._round)

    def samples(self, worker: Worker) -> Samples:
        """Return the samples of a worker of the round."""
        return collective_watch.read_samples(self._counts[worker.local_rank], self._round)

    def request_records(self, workers: Iterable[Worker], number: int) -> None:
        """Request the flight records of workers that have process groups."""
        for worker in workers:
            collective_watch.request_record(self._counts[worker.local_rank], number)

    def record(self, worker: Worker, number: int) -> bytes | None:
        """Return the flight record of a worker; None if it has not answered yet. It may be called in any thread."""
        return collective_watch.read_record(self._counts[worker.local_rank], number)

    def check(self, found: WorkersOfRound) -> Overdue | None:
        """Look at the workers of the round. Return what is overdue; None if nothing is."""
        if found.round != self._round:
            self._round, self._progress = found.round, {}
        for worker in found.workers:
            self._progress.setdefault(worker.local_rank, WorkerProgress(self._settings))
        interval, now = self._interval(), self._clock()
        if interval is None or now < self._checked_at + self._pause(interval):
            return None
        # A gap is time in which this process did not run, and the workers may not have run either.
        passed = min(now - self._checked_at, 2 * interval)
        self._checked_at = now
        for worker in found.workers:
            self._observe(worker, passed)
        return self._overdue(found)

    def _observe(self, worker: Worker, passed: float) -> None:
        progress = self._progress[worker.local_rank]
        read = self._control_page.marks(worker.local_rank).read(progress.newest, at_most=STEPS)
        marks = [mark for mark in read if mark.round == self._round]
        age = max(0.0, boottime() - marks[-1].time / 1e9) if marks else 0.0
        progress.observe(passed, marks, self.collectives(worker), age)

    def _overdue(self, found: WorkersOfRound) -> Overdue | None:
        workers: Sequence[Worker] = sorted(found.workers, key=lambda worker: worker.rank)
        overdue = [worker for worker in workers if self.progress(worker).is_overdue]
        with_steps = [worker for worker in overdue if self.progress(worker).has_steps]
        # Without steps, slow work of one rank cannot be told from a hang, so no rank of the node may make progress.
        chosen = with_steps or (overdue if len(overdue) == len(workers) else [])
        if not chosen:
            return None
        progress = self.progress(chosen[0])
        limit = progress.limit
        assert limit is not None
        return Overdue(self._round, chosen[0].rank, limit, limit - progress.still, progress.has_steps)

    def _pause(self, interval: float) -> float:
        """Return the seconds until the next check: ``interval``, or less if a worker is to be examined before."""
        due = (left for each in self._progress.values() if (left := each.until_examined) is not None and left > 0.0)
        return max(_MIN_INTERVAL, min((interval, *due)))

    def _interval(self) -> float | None:
        """Return the seconds between two checks; None if there is nothing to watch."""
        limits = [limit for each in self._progress.values() if (limit := each.limit) is not None]
        if self._settings.action == "ignore" or not limits:
            return None
        return min(_MAX_INTERVAL, max(_MIN_INTERVAL, min(limits) / _CHECKS))
