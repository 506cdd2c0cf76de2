"""When a process takes snapshots during a training. The clock belongs to the test."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hpcelastic.training import Checkpoints, context, device_groups, periodic_snapshots
from hpcelastic.training.periodic_snapshots import PeriodicSnapshots
from hpcelastic.training.recovery import Held
from tests.training.workers import become_nobody

STEP_TIME = 1.0


class Training(Checkpoints):
    """A training whose steps take a second, and whose snapshots are only counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, every: Any = "auto", *, sharded: bool = True) -> None:
        super().__init__()
        self.now, self.step, self.cost = 1000.0, 0, 0.2
        self.accepts = True
        """Whether a snapshot can be taken."""

        self.keeps = True
        """Whether the agent keeps the newest snapshot."""

        self.taken: list[int] = []
        self.spent = 0.0
        """Seconds for snapshots."""

        self.begin_time = self.now
        for module in (periodic_snapshots, device_groups):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.snapshots = PeriodicSnapshots(self, every, sharded)

    def begin(self, round: int = 1, step: int = 0, rank: int = 0) -> "Training":
        self.step = step
        self.snapshots.begin_round(replace(context(), round=round, rank=rank), step)
        return self

    def snapshot(self, step: int, state: dict[str, Any]) -> bool:
        assert state == {"step": step}
        if not self.accepts:
            return False
        self.now += self.cost
        self.spent += self.cost
        self.taken.append(step)
        return True

    def is_kept(self, timeout: float = 0.0) -> bool:
        return self.keeps

    def run(self, steps: int) -> list[int]:
        """Train for so many steps, and look for a snapshot before each. Return the steps of the snapshots."""
        before = len(self.taken)
        for _ in range(steps):
            if self.snapshots.is_due(self.step):
                self.snapshots.take(Held(1, self.step), lambda: {"step": self.step})
            self.now += STEP_TIME
            self.step += 1
        return self.taken[before:]

    def keep(self) -> bool:
        return self.snapshots.keep(Held(1, self.step), lambda: {"step": self.step})


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    become_nobody(monkeypatch)


def test_a_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Training(monkeypatch, 30).begin().run(100) == [1, 31, 61, 91]
    assert Training(monkeypatch, 1).begin().run(5) == [1, 2, 3, 4]
    assert Training(monkeypatch, 0).begin().run(100) == []


@pytest.mark.parametrize("cost", [0.001, 0.05, 0.2, 3.0])
def test_snapshots_stop_the_training_for_half_a_percent_of_the_time(
    monkeypatch: pytest.MonkeyPatch, cost: float
) -> None:
    training = Training(monkeypatch).begin()
    training.cost = cost
    assert training.run(1)[:1] == [] and training.run(1) == [1], "never before the first step, and soon after it"
    training.spent, began = 0.0, training.now
    taken = training.run(2000)
    assert taken
    assert training.spent <= 0.005 * (training.now - began) + cost
    interval = max(1, round(cost / 0.005 / STEP_TIME))
    distances = [later - earlier for earlier, later in zip([1, *taken], taken, strict=False)]
    assert all(interval <= distance <= interval + 2 for distance in distances), "they are not rarer than that"


def test_a_higher_cost_makes_them_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch).begin()
    before = len(training.run(400))
    training.cost *= 4
    training.run(400)
    assert len(training.run(400)) < before / 2


def test_the_first_snapshot_of_a_round_is_due_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that has had copies may be lost."""
    training = Training(monkeypatch).begin()
    training.cost = 3.0
    assert training.run(10) == [1]
    assert training.begin(round=2, step=10).run(10) == [10]
    assert training.begin(round=3, step=5).run(10) == [5], "the training continues from an older state"


def test_a_process_outside_a_run_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Training(monkeypatch).begin(round=0).run(100) == []
    assert Training(monkeypatch, 10).begin(round=0).run(100) == []


@pytest.mark.parametrize(("sharded", "rank", "takes"), [(True, 0, 1), (True, 1, 1), (False, 0, 1), (False, 1, 0)])
def test_only_rank_0_takes_those_of_a_state_that_is_not_sharded(
    monkeypatch: pytest.MonkeyPatch, sharded: bool, rank: int, takes: bool
) -> None:
    assert bool(Training(monkeypatch, sharded=sharded).begin(rank=rank).run(100)) == takes
    assert bool(Training(monkeypatch, 10, sharded=sharded).begin(rank=rank).run(100)) == takes


def gathers(monkeypatch: pytest.MonkeyPatch, others: Callable[[Any], list[Any]]) -> None:
    monkeypatch.setattr(periodic_snapshots, "gather_objects", lambda mine: [mine, *others(mine)])


@pytest.mark.parametrize(
    ("every", "sharded", "nodes", "takes"),
    [
        ("auto", False, ["n2@b"], False),
        ("auto", False, ["", ""], True),
        ("auto", True, ["n2@b"], True),
        (10, False, ["n2@b"], True),
    ],
    ids=["replicated", "one node", "sharded", "a number of steps"],
)
def test_a_state_that_several_nodes_hold_needs_none(
    monkeypatch: pytest.MonkeyPatch, every: Any, sharded: bool, nodes: list[str], takes: bool
) -> None:
    nodes = [node or context().node for node in nodes]
    training = Training(monkeypatch, every, sharded=sharded)
    gathers(monkeypatch, lambda mine: nodes)
    training.begin()
    gathers(monkeypatch, lambda mine: [])
    assert bool(training.run(100)) == takes


def test_the_ranks_agree_on_the_latest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch).begin()
    gathers(monkeypatch, lambda mine: [mine + 5])
    training.begin()
    assert training.run(50) == [], "another rank always waits for five steps more"
    gathers(monkeypatch, lambda mine: [])
    assert training.run(10) != []


def test_the_state_is_kept_at_the_end_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch, 30).begin()
    training.run(40)
    assert training.keep() and training.taken == [1, 31, 40]
    training.begin(step=50).run(1)
    training.step = 50
    assert training.keep() and training.taken == [1, 31, 40, 50], "it is kept already"
    training.begin(round=2, step=50)
    assert training.keep() and training.taken == [1, 31, 40, 50, 50], "its copy may be lost"


def test_the_state_is_not_kept_if_a_rank_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch, 30).begin()
    training.run(40)
    gathers(monkeypatch, lambda mine: [False])
    assert not training.keep()
    gathers(monkeypatch, lambda mine: [])
    assert training.keep()
    training.keeps = False
    assert not training.keep()
    training.run(1)
    training.keeps, training.accepts = True, False
    assert not training.keep()


def test_without_snapshots_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Training(monkeypatch, 0).begin().keep()
    assert not PeriodicSnapshots(None, "auto", True).keep(Held(1, 1), dict)


@pytest.mark.parametrize("every", [-1, "often", "10"])
def test_a_bad_interval_is_an_error(every: Any) -> None:
    with pytest.raises(ValueError, match=f"snapshot is {every!r}; it must be 'auto', or 0 or more steps"):
        PeriodicSnapshots(Checkpoints(), every, True)


def test_a_number_of_steps_needs_checkpoints() -> None:
    with pytest.raises(ValueError, match=r"snapshot needs checkpoints=Checkpoints\(\)"):
        PeriodicSnapshots(None, 10, True)
    PeriodicSnapshots(None, 0, True).begin_round(replace(context(), round=1), 0)
