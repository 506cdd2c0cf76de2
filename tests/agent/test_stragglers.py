"""The work fraction of a worker over time, and the files in which agents publish work fractions."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcelastic.agent.settings import HangSettings, StragglerSettings
from hpcelastic.agent.stacks import WorkersOfRound
from hpcelastic.agent.stragglers import FractionMeter, StragglerWatch
from hpcelastic.agent.watchdog import Watchdog
from hpcelastic.agent.worker import Worker
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.marks import MarkKind
from hpcelastic.protocol.events import StragglersFound
from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, Settings
from hpcelastic.protocol.state import Participant, Phase, State
from hpcelastic.storage.paths import RunPaths
from hpcelastic.worker import collective_watch
from hpcelastic.worker.collective_watch import Samples
from tests.agent.processes import TIMEOUT
from tests.agent.test_watchdog import NoProcess


def samples(time: float, waited: float) -> Samples:
    return Samples(time, round(20 * time), waited)


def test_the_work_fraction_is_that_of_the_newest_time_and_steps() -> None:
    fraction = FractionMeter(seconds=6.0, steps=50)
    assert fraction.observe(0.0, 0, samples(0, 0)) is None
    assert fraction.observe(5.0, 100, samples(5, 1)) is None  # too early
    assert fraction.observe(6.0, 49, samples(6, 3)) is None  # too few steps
    assert fraction.observe(10.0, 60, samples(10, 5)) == (0.5, 200)
    assert fraction.observe(16.0, 150, samples(16, 5)) == (1.0, 120)  # nothing but work in the newest 6 s


def test_a_worker_that_makes_no_steps_does_not_take_more_and_more_memory() -> None:
    fraction = FractionMeter(seconds=6.0, steps=50)
    for time in range(1000):
        assert fraction.observe(time, time // 100, samples(time, 0)) is None
    assert len(fraction._records) == 20, "the first and the last for each number of steps"
    assert fraction.observe(1000, 50, samples(1000, 0)) == (1.0, 18_020)


def test_without_marks_the_time_decides() -> None:
    fraction = FractionMeter(seconds=6.0, steps=50)
    assert fraction.observe(0.0, None, samples(0, 0)) is None
    assert fraction.observe(6.0, None, samples(6, 1.5)) == (0.75, 120)


def test_numbers_of_another_process_begin_anew() -> None:
    fraction = FractionMeter(seconds=6.0, steps=1)
    fraction.observe(0.0, None, samples(100, 50))
    assert fraction.observe(8.0, None, samples(3, 1)) is None
    assert fraction.observe(14.0, None, samples(9, 4)) == (0.5, 120)


def test_a_worker_that_is_not_sampled_has_no_fraction() -> None:
    fraction = FractionMeter(seconds=6.0, steps=1)
    for time in (0.0, 6.0, 12.0):
        assert fraction.observe(time, None, Samples()) is None


class Node:
    """A node of a round of two nodes, with one worker each, on a simulated clock."""

    def __init__(self, root: Path, index: int, action: str = "report") -> None:
        self.now, self.reported, self.events, self.changes = 100.0, list[str](), list[Any](), list[Any]()
        self.page = ControlPage.make(1)
        self.watchdog = Watchdog(HangSettings(), self.page, lambda: self.now)
        times = RendezvousSettings(lease=9.0, poll=0.5)
        self.state = State(
            "r",
            Settings(NodeRange(1, 2), times),
            Phase.RUNNING,
            3,
            tuple(Participant(f"n{i}@1", 1, "10.0.0.1", 1) for i in range(2)),
        )
        session: Any = SimpleNamespace(
            spec=SimpleNamespace(paths=RunPaths(root), settings=self.state.settings),
            member=SimpleNamespace(node=f"n{index}@1", name=f"n{index}"),
            log=self.events.append,
            report=self.reported.append,
            call_rendezvous=self._call,
        )
        settings = StragglerSettings(action=action, steps=1)  # type: ignore[arg-type]
        self.watch = StragglerWatch(session, settings, self.watchdog, lambda: self.now)
        self.found = WorkersOfRound(3, [Worker(index, 0, NoProcess(), -1, Path("error.json"), None)])
        self.watch.observe(self.state)
        self.seconds = self.waited = 0.0

    def _call(self, change: Callable[[Any], None]) -> None:
        change(SimpleNamespace(change=lambda change: self.changes.append(change(self.state).next)))

    def pass_time(self, seconds: float, fraction: float) -> None:
        """Let the worker work for a part of its time, and the agent check as often as it wants to."""
        end = self.now + seconds
        while (left := self.watch.seconds_left()) is not None and self.now + left < end:
            step = max(left, 0.01)
            self.now += step
            self.seconds, self.waited = self.seconds + step, self.waited + step * (1 - fraction)
            with open(self.watchdog.variables[0], "r+b") as memory:
                numbers = Samples(self.seconds, round(20 * self.seconds), self.waited)
                collective_watch.write(memory.fileno(), 3, [], numbers)
            self.watchdog.check(self.found)
            self.watch.check(self.found)
            self.watch._task.close(TIMEOUT)
        self.now = end

    def close(self) -> None:
        self.watchdog.close()
        self.page.close()


@pytest.fixture
def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    made = [Node(tmp_path, index, getattr(request, "param", "report")) for index in range(2)]
    yield made
    for node in made:
        node.close()


def run_for(nodes: list[Node], seconds: float, *work: float) -> None:
    for _ in range(round(seconds)):
        for node, fraction in zip(nodes, work, strict=True):
            node.pass_time(1.0, fraction)


def test_the_agent_of_rank_0_names_the_slow_rank_once(nodes: list[Node], tmp_path: Path) -> None:
    first, second = nodes
    run_for(nodes, 20, 0.6, 0.97)
    (event,) = first.events
    assert isinstance(event, StragglersFound) and event.ranks == (1,) and "rank 1 on n1 is 1.6" in event.text
    (state,) = first.changes
    assert state.slow.ranks == (1,) and not state.drained and state.phase is Phase.RUNNING
    assert len(first.reported) == 1 and first.reported[0].startswith("round 3: rank 1 on n1 is")
    assert not second.events and not second.changes
    assert len([*(tmp_path / "work-fractions").iterdir()]) == 2  # one file of each node


@pytest.mark.parametrize("nodes", ["exclude"], indirect=True)
def test_a_node_is_excluded_once_it_was_slow_for_long(nodes: list[Node]) -> None:
    first = nodes[0]
    first.state = replace(first.state, standbys=("n2@1",))
    run_for(nodes, 12, 0.6, 0.97)
    assert [state.drained for state in first.changes] == [()]
    run_for(nodes, 12, 0.6, 0.97)
    assert [state.drained for state in first.changes] == [(), ("n1",)]


def test_a_rank_that_is_fast_again_is_withdrawn(nodes: list[Node]) -> None:
    run_for(nodes, 20, 0.6, 0.97)
    run_for(nodes, 20, 0.97, 0.97)
    assert [event.ranks for event in nodes[0].events] == [(1,), ()]
    assert len(nodes[0].reported) == 1


def test_shares_that_do_not_change_are_written_once(nodes: list[Node], tmp_path: Path) -> None:
    run_for(nodes, 60, 0.9, 0.91)
    names = sorted(path.name for path in (tmp_path / "work-fractions").iterdir())
    assert names == ["n0-1.000001.json", "n1-1.000001.json"]
    assert not nodes[0].events


def test_a_new_round_begins_anew(nodes: list[Node]) -> None:
    run_for(nodes, 20, 0.6, 0.97)
    for node in nodes:
        node.state = replace(node.state, round=4)
        node.watch.observe(node.state)
        node.found = WorkersOfRound(4, node.found.workers)
    nodes[0].events.clear()
    run_for(nodes, 5, 0.6, 0.97)
    assert not nodes[0].events


def test_a_phase_is_not_compared(nodes: list[Node]) -> None:
    for node in nodes:
        node.page.marks(0).write(3, MarkKind.STEP, 1)
    nodes[1].page.marks(0).write(3, MarkKind.EVALUATING, 100)
    run_for(nodes, 20, 0.1, 0.97)
    assert not nodes[0].events


@pytest.mark.parametrize("nodes", ["ignore"], indirect=True)
def test_nothing_is_watched_on_request(nodes: list[Node], tmp_path: Path) -> None:
    run_for(nodes, 20, 0.6, 0.97)
    assert nodes[0].watch.seconds_left() is None and not (tmp_path / "work-fractions").exists()


def test_nothing_is_watched_outside_of_a_round(nodes: list[Node]) -> None:
    nodes[0].watch.observe(replace(nodes[0].state, phase=Phase.JOINING))
    assert nodes[0].watch.seconds_left() is None
    alone = nodes[0].state.participants[:1]
    nodes[0].watch.observe(replace(nodes[0].state, participants=alone))
    assert nodes[0].watch.seconds_left() is None
