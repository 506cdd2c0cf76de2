"""The limits within which a worker must make progress."""

import pytest

from hpcelastic.agent.progress import WorkerProgress
from hpcelastic.agent.settings import HangSettings
from hpcelastic.ipc.marks import Mark, MarkKind

SETTINGS = HangSettings(min_limit=10.0, factor=5.0, first_step=1800.0, phase=3600.0, without_marks=300.0)


class Worker:
    """A worker that writes marks at given times."""

    def __init__(self) -> None:
        self.progress = WorkerProgress(SETTINGS)
        self.number = 0
        self.time = 0.0

    def mark(self, kind: MarkKind, value: int = 0, after: float = 1.0) -> None:
        self.number, self.time = self.number + 1, self.time + after
        self.progress.observe(after, [Mark(self.number, round(self.time * 1e9), 1, kind, value)], ())

    def steps(self, first: int, last: int, seconds: float = 1.0) -> None:
        for number in range(first, last + 1):
            self.mark(MarkKind.STEP, number, seconds)


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_before_its_first_step_a_worker_has_the_limit_without_marks(worker: Worker) -> None:
    assert worker.progress.limit == 300.0 and not worker.progress.has_steps
    worker.mark(MarkKind.RESTORED, 5)
    assert worker.progress.limit == 300.0


def test_the_first_step_has_its_own_limit(worker: Worker) -> None:
    worker.steps(1, 1)
    assert worker.progress.limit == 1800.0 and worker.progress.has_steps


@pytest.mark.parametrize(("seconds", "limit"), [(0.1, 10.0), (2.0, 10.0), (3.0, 15.0), (60.0, 300.0)])
def test_the_limit_is_a_multiple_of_the_longest_step(worker: Worker, seconds: float, limit: float) -> None:
    worker.steps(1, 3, seconds)
    assert worker.progress.limit == pytest.approx(limit)


def test_only_the_last_100_steps_count(worker: Worker) -> None:
    worker.steps(1, 2, 100.0)
    worker.steps(3, 101, 1.0)
    assert worker.progress.limit == pytest.approx(500.0)
    worker.steps(102, 102, 1.0)
    assert worker.progress.limit == 10.0


def test_the_time_without_progress_counts_from_the_newest_mark(worker: Worker) -> None:
    worker.steps(1, 5)
    assert worker.progress.until_examined == 9.5
    worker.progress.observe(9.4, [], ())
    assert not worker.progress.is_overdue
    worker.progress.observe(0.1, [], ())
    assert worker.progress.is_overdue, "an examination takes half a second"
    worker.steps(6, 6)
    assert not worker.progress.is_overdue and worker.progress.still == 0.0


def test_the_age_of_the_newest_mark_counts_unless_the_agent_has_not_run(worker: Worker) -> None:
    marks = [Mark(1, 1, 1, MarkKind.STEP, 1)]
    worker.progress.observe(0.25, marks, (), age=0.2)
    assert worker.progress.still == 0.2
    worker.progress.observe(0.25, marks, (), age=3600.0)
    assert worker.progress.still == 0.25


def test_a_collective_is_progress(worker: Worker) -> None:
    worker.steps(1, 5)
    for count in range(10):
        worker.progress.observe(9.0, [], (count,))
        assert worker.progress.still == 0.0
    worker.progress.observe(9.0, [], (9,))
    assert worker.progress.still == 9.0


@pytest.mark.parametrize("kind", [MarkKind.SAVING, MarkKind.COMPILING, MarkKind.EVALUATING, MarkKind.PHASE])
def test_a_phase_has_its_own_limit_and_is_no_part_of_a_step(worker: Worker, kind: MarkKind) -> None:
    worker.steps(1, 5)
    worker.mark(kind)
    assert worker.progress.limit == 3600.0
    worker.mark(MarkKind.PHASE_ENDED, after=500.0)
    assert worker.progress.limit == 10.0
    worker.steps(6, 7)
    assert worker.progress.limit == 10.0  # the step with the phase in it was not measured


def test_a_phase_within_a_phase(worker: Worker) -> None:
    worker.steps(1, 5)
    worker.mark(MarkKind.EVALUATING, 900)
    worker.mark(MarkKind.SAVING)
    assert worker.progress.limit == 3600.0
    worker.mark(MarkKind.PHASE_ENDED)
    assert worker.progress.limit == 900.0
    worker.steps(6, 6)
    assert worker.progress.limit == 10.0  # a step ends all phases


@pytest.mark.parametrize("kind", [MarkKind.STOPPING, MarkKind.DONE, MarkKind.PARKED])
def test_after_its_last_step_nothing_is_expected_of_a_worker(worker: Worker, kind: MarkKind) -> None:
    worker.steps(1, 5)
    worker.mark(kind)
    worker.progress.observe(1e6, [], ())
    assert worker.progress.limit is None and not worker.progress.is_overdue
    worker.steps(6, 7)  # another loop
    assert worker.progress.limit == 10.0
