"""Reports on workers that have failed or ended."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from hpcelastic.agent.failure_texts import describe_failure
from hpcelastic.agent.guard_main import boottime
from hpcelastic.agent.worker import Worker
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.marks import MarkRing
from hpcelastic.protocol.events import WorkerEnded
from hpcelastic.protocol.findings import RollbackDemand
from hpcelastic.protocol.state import Failure

T = TypeVar("T")


class PendingFailure:
    """A failure that counts only if no other cause ends the round before."""

    def __init__(self) -> None:
        self.at: float | None = None
        """The time at which it counts; None if there is none."""

        self.of_ended_worker = False
        """Whether a worker of the round has ended by a failure, which may not count yet."""

        self._report: Callable[[], None] = self.clear

    def await_other_cause(self, seconds: float, report: Callable[[], None], *, of_ended_worker: bool = False) -> None:
        """Call ``report`` in so many seconds, unless another failure counts before that."""
        self.of_ended_worker |= of_ended_worker
        at = boottime() + seconds
        if self.at is None or at < self.at:
            self.at, self._report = at, report

    def clear(self) -> None:
        self.at, self.of_ended_worker = None, False

    def expire(self, now: float) -> None:
        """Report the failure if it is time."""
        if self.at is not None and now >= self.at:
            self.at = None
            self._report()


def with_description(failure: Failure, worker: Worker, remark: str) -> Failure:
    """Return the report of a failure with what the worker has left, and ``remark`` at the end of its message."""
    from hpcelastic.health.known_causes import is_echo  # here, because most agents have no failure

    message, traceback, when = describe_failure(failure.exit_code, worker.error_file, worker.log)
    return replace(failure, message=message + remark, traceback=traceback, timestamp=when, echo=is_echo(message))


def within(seconds: float, function: Callable[[], T], late: Callable[[T], None]) -> T | None:
    """Call ``function`` in a thread. Return its result, or None after ``seconds``; ``late`` is then called with it."""
    results: list[T] = []
    first = threading.Lock()  # acquired by the result or by the time-out, and never released

    def run() -> None:
        results.append(function())
        if not first.acquire(blocking=False):
            late(results[0])

    thread = threading.Thread(target=run, name="failure", daemon=True)
    thread.start()
    thread.join(seconds)
    return None if first.acquire(blocking=False) else results[0]


def failure_of(worker: Worker, round: int, exit_code: int, marks: MarkRing) -> Failure:
    """Return the report of the failure of a worker in ``round``, without its node and its message."""
    demand = marks.rollback(round)
    return Failure(
        round=round,
        node="",
        rank=worker.rank,
        local_rank=worker.local_rank,
        exit_code=exit_code,
        message="",
        timestamp=time.time(),
        step=marks.steps(round) or -1,
        rollback=None if demand is None else RollbackDemand(*demand),
    )


def end_of_worker(worker: Worker, round: int, exit_code: int, page: ControlPage | None = None) -> WorkerEnded:
    """Return the event of the end of a worker, with what it has left on the control ``page``."""
    usage = worker.process.usage
    ended = WorkerEnded(
        round=round,
        rank=worker.rank,
        exit_code=exit_code,
        peak_memory=usage.peak_memory if usage else None,
        cpu_seconds=usage.cpu_seconds if usage else None,
    )
    if page is None:
        return ended
    marks = page.marks(worker.local_rank)
    requested = page.acknowledges(worker.local_rank, round) or None
    ended, mark = replace(ended, step=marks.steps(round), requested=requested), marks.newest(round)
    if mark is None:
        return ended
    age = max(0.0, boottime() - mark.time / 1e9)
    return replace(ended, mark=mark.kind.name.lower(), mark_value=mark.value, mark_age=float(f"{age:.3f}"))
