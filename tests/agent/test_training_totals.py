"""The totals of a node's training: which worker has them, and the file of the running round."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcelastic.agent.stacks import WorkersOfRound
from hpcelastic.agent.training_totals import TotalsWriter, training_totals
from hpcelastic.agent.worker import Worker
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.marks import MarkKind, Source
from hpcelastic.protocol.events import LoggedEvent, TrainingTotals
from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import Participant, Phase, State
from hpcelastic.storage.events import read_logs
from hpcelastic.storage.paths import RunPaths
from tests.agent.processes import eventually
from tests.agent.test_watchdog import NoProcess


@pytest.fixture
def page() -> ControlPage:
    return ControlPage.make(2)


def train(page: ControlPage, seat: int, steps: int, round: int = 3) -> None:
    ring = page.marks(seat)
    ring.write(round, MarkKind.SOURCE, Source.DISK)
    ring.write(round, MarkKind.RESTORED, 40)
    for step in range(1, steps + 1):
        ring.write(round, MarkKind.STEP, step)


def test_the_worker_with_the_most_steps_counts(page: ControlPage) -> None:
    train(page, 0, 4)
    train(page, 1, 5)
    totals = training_totals(page, 3, {0: 6, 1: 7})
    assert totals is not None
    assert (totals.rank, totals.steps, totals.before, totals.source) == (7, 5, 40, "disk")
    assert totals.first_step is not None and totals.last_step is not None and totals.restored is not None
    assert totals.restored <= totals.first_step <= totals.last_step
    assert len(totals.samples) == 2 and totals.first_step + totals.samples[-1] <= totals.last_step
    assert totals.entered is totals.group is totals.saved is totals.saved_step is None


def test_without_marks_there_are_no_totals(page: ControlPage) -> None:
    train(page, 0, 4, round=2)
    assert training_totals(page, 3, {0: 6, 1: 7}) is None


class Node:
    """A node, and what it writes about its running round, on a simulated clock."""

    def __init__(self, root: Path, page: ControlPage, index: int) -> None:
        self.now, self.paths = 100.0, RunPaths(root)
        session: Any = SimpleNamespace(
            spec=SimpleNamespace(paths=self.paths), member=SimpleNamespace(node=f"n{index}@0-a", name=f"n{index}")
        )
        self.writer = TotalsWriter(session, page, lambda: self.now)
        self.found = WorkersOfRound(3, [Worker(6, 0, NoProcess(), -1, Path("error.json"), None)])

    def observe(self, phase: Phase) -> None:
        participants = tuple(Participant(f"n{i}@0-a", 1, "h", 1) for i in range(4))
        self.writer.observe(State("r", Settings(NodeRange(1, 4)), phase, 3, participants))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.writer.check(self.found)

    def steps(self) -> list[int]:
        """Return the steps in the files."""
        logs = read_logs(self.paths.training_totals).values()
        return [each.event.steps for log in logs for each in log if isinstance(each.event, TrainingTotals)]


@pytest.fixture
def node(tmp_path: Path, page: ControlPage) -> Callable[[int], Node]:
    return lambda index: Node(tmp_path, page, index)


def test_one_of_the_first_nodes_replaces_its_file_while_the_round_runs(
    node: Callable[[int], Node], page: ControlPage
) -> None:
    one = node(2)
    assert one.writer.seconds_left() is None
    one.observe(Phase.RUNNING)
    assert one.writer.seconds_left() == 1.0
    train(page, 0, 4)
    one.wait(0.9)
    assert one.steps() == []
    one.wait(0.1)
    eventually(lambda: one.steps() == [4])
    train(page, 0, 9)
    one.wait(2.0)
    eventually(lambda: one.steps() == [9])
    ((name, log),) = read_logs(one.paths.training_totals).items()
    assert name == "n2@0-a", "the account finds them by the node"
    assert isinstance(log[0], LoggedEvent) and log[0].node == "n2" and log[0].up is not None
    train(page, 0, 11)
    one.wait(1.0)
    one.found = WorkersOfRound(0)  # they have ended
    one.wait(0.0)
    one.observe(Phase.SUCCEEDED)
    assert one.writer.seconds_left() is None
    one.writer.close()
    assert one.steps() == [11], "the end of the round is in the file too"


def test_a_file_tells_that_no_worker_of_the_round_has_marks(node: Callable[[int], Node], page: ControlPage) -> None:
    one = node(0)
    one.observe(Phase.RUNNING)
    one.wait(1.0)
    eventually(lambda: one.steps() == [0])
    train(page, 0, 4)
    one.wait(2.0)
    eventually(lambda: one.steps() == [4])
    one.found = WorkersOfRound(4, one.found.workers)
    one.wait(4.0)
    eventually(lambda: one.steps() == [4, 0])
    (log,) = read_logs(one.paths.training_totals).values()
    events = [each.event for each in log if isinstance(each.event, TrainingTotals)]
    assert [(each.round, each.marked) for each in events] == [(3, True), (4, False)]
    train(page, 0, 2, round=4)
    one.wait(8.0)
    eventually(lambda: one.steps() == [2])


def test_other_nodes_write_no_file(node: Callable[[int], Node], page: ControlPage) -> None:
    other = node(3)
    other.observe(Phase.RUNNING)
    train(page, 0, 4)
    other.wait(60.0)
    assert other.writer.seconds_left() is None and not other.paths.training_totals.exists()
