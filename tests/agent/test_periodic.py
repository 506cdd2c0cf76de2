"""A task that is repeated at intervals, in a thread."""

import threading

import pytest

from hpcelastic.agent.periodic import PeriodicTask
from hpcelastic.errors import StoreError
from tests.agent.processes import TIMEOUT


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_is_due_after_each_interval() -> None:
    clock = Clock()
    task = PeriodicTask("test", 3.0, clock)
    assert (task.planned, task.seconds_left(), task.is_due()) == (False, None, False)
    task.plan(True)
    clock.now += 2
    task.plan(True)
    assert (task.planned, task.seconds_left(), task.is_due()) == (True, 1.0, False)
    clock.now += 2
    assert task.seconds_left() == 0.0
    assert (task.is_due(), task.is_due(), task.seconds_left()) == (True, False, 3.0)
    clock.now += 1
    task.plan(True, anew=True)
    assert task.seconds_left() == 3.0
    task.plan(False)
    assert (task.planned, task.is_due()) == (False, False)


def test_the_first_runs_are_sooner() -> None:
    clock = Clock()
    task = PeriodicTask("test", 10.0, clock, first=1.0)
    for _ in range(2):
        task.plan(True)
        pauses = []
        for _ in range(6):
            pauses.append(task.seconds_left())
            clock.now += pauses[-1] or 0.0
            assert task.is_due()
        assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
        task.plan(False)


def test_one_run_at_a_time() -> None:
    task, go, runs = PeriodicTask("test", 3.0), threading.Event(), list[int]()
    task.begin(lambda: runs.append(1) or go.wait())
    task.begin(lambda: runs.append(2))
    assert task.runs
    task.close(0.01)
    assert task.runs, "it waits only so long"
    go.set()
    task.close(TIMEOUT)
    assert not task.runs and runs == [1]
    task.begin(lambda: runs.append(3))
    task.close(TIMEOUT)
    assert runs == [1, 3]


def test_a_filesystem_that_fails_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    raised, task = list[object](), PeriodicTask("test", 3.0)

    def fails() -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(threading, "excepthook", raised.append)
    task.begin(fails)
    task.close(TIMEOUT)
    assert raised == []
