"""The watchdog of a node: which of its workers are overdue, and when it looks."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.agent.settings import HangSettings
from hpcelastic.agent.stacks import WorkersOfRound
from hpcelastic.agent.watchdog import Overdue, Watchdog
from hpcelastic.agent.worker import Worker
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.marks import MarkKind
from hpcelastic.worker import collective_watch
from hpcelastic.worker.collective_watch import GroupCount


class NoProcess:
    """A process that is never reaped."""

    pid = os.getpid()
    usage = None

    def wait(self) -> int:
        raise AssertionError


class Node:
    """A node with two workers in round 3, and its watchdog, on a simulated clock."""

    def __init__(self, settings: HangSettings) -> None:
        self.page = ControlPage.make(2)
        self.now = 100.0
        self.watchdog = Watchdog(settings, self.page, lambda: self.now)
        workers = [Worker(4 + i, i, NoProcess(), -1, Path("error.json"), None) for i in range(2)]
        self.found = WorkersOfRound(3, workers)
        assert self.check() is None

    def close(self) -> None:
        self.watchdog.close()
        self.page.close()

    def mark(self, seat: int, kind: MarkKind, value: int) -> None:
        self.page.marks(seat).write(3, kind, value)

    def begin(self, seat: int, collectives: int) -> None:
        path = self.watchdog.variables[seat]
        with open(path, "r+b") as memory:
            collective_watch.write(memory.fileno(), 3, [GroupCount("0", "default_pg", 8, collectives)])

    def check(self) -> Overdue | None:
        return self.watchdog.check(self.found)

    def wait(self, seconds: float) -> Overdue | None:
        """Check as often as the agent does. Return the first finding."""
        end = self.now + seconds
        while self.now < end:
            left = self.watchdog.seconds_left()
            self.now = end if left is None else min(end, self.now + max(left, 1e-6))
            if (overdue := self.check()) is not None:
                return overdue
        return None


@pytest.fixture
def settings() -> HangSettings:
    return HangSettings(min_limit=10.0, without_marks=300.0)


@pytest.fixture
def node(settings: HangSettings) -> Iterator[Node]:
    node = Node(settings)
    yield node
    node.close()


def train(node: Node, steps: int = 5) -> None:
    """Let both workers make steps of one second."""
    for step in range(1, steps + 1):
        for seat in range(2):
            node.mark(seat, MarkKind.STEP, step)
        assert node.wait(1.0) is None


def test_a_worker_that_makes_no_step_is_overdue(node: Node) -> None:
    train(node)
    found, step = None, 5
    while found is None:
        step += 1
        node.mark(0, MarkKind.STEP, step)
        found = node.wait(1.0)
    assert found is not None and (found.round, found.rank, found.has_steps) == (3, 5, True)
    assert found.limit == 10.0 and 0.4 < found.left <= 0.5, "it looks when the examination is due"


def test_a_worker_without_steps_makes_progress_as_long_as_it_begins_collectives(node: Node) -> None:
    for count in range(200):
        for seat in range(2):
            node.begin(seat, count)
        assert node.wait(5.0) is None
    found = node.wait(301.0)
    assert found is not None and (found.rank, found.has_steps) == (4, False)


def test_without_steps_no_worker_of_the_node_may_make_progress(node: Node) -> None:
    for count in range(400):
        node.begin(0, count)
        assert node.wait(1.0) is None


def test_time_in_which_the_agent_does_not_run_does_not_count(node: Node) -> None:
    """The machine is suspended for an hour."""
    train(node)
    node.now += 3600.0
    assert node.check() is None
    assert node.wait(5.0) is None


def test_another_round_begins_anew(node: Node) -> None:
    train(node)
    assert node.wait(8.0) is None
    node.found = WorkersOfRound(4, node.found.workers)
    assert node.wait(200.0) is None
    node.found = WorkersOfRound(0)
    node.check()
    assert node.watchdog.seconds_left() is None


@pytest.mark.parametrize("settings", [HangSettings(action="ignore")])
def test_nothing_is_watched_if_hangs_are_ignored(node: Node) -> None:
    assert node.watchdog.seconds_left() is None
    assert node.wait(1e6) is None


def test_the_watchdog_wakes_the_agent_a_few_times_a_second_at_most(node: Node) -> None:
    train(node)
    assert node.watchdog.seconds_left() == pytest.approx(0.25)
    node.mark(0, MarkKind.DONE, 5)
    node.mark(1, MarkKind.DONE, 5)
    assert node.wait(1.0) is None
    assert node.watchdog.seconds_left() is None
