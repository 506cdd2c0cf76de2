"""The state of a training in one process: boundaries, and what a round continues from."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hpcelastic.training import Checkpoints, Elastic, GlobalBatches, elastic, periodic_saves
from hpcelastic.training.recovery import Held
from hpcelastic.training.retention import CheckpointName
from hpcelastic.training.rounds import RoundEnded

DATA = torch.utils.data.TensorDataset(torch.randn(12, 3), torch.randn(12, 1))


def destroy_group() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class Seat:
    """Calls a function again, in another round, whenever it raises `RoundEnded`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.releases_at_boundary = False

    def run(self, body: Callable[[], Any]) -> Any:
        for round in range(1, 10):
            self._monkeypatch.setenv("HPCELASTIC_ROUND", str(round))
            try:
                return body()
            except RoundEnded:
                destroy_group()
        raise AssertionError("no round has ended well")

    def release(self) -> None: ...


@pytest.fixture(autouse=True)
def seat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Seat]:
    made = Seat(monkeypatch)
    monkeypatch.setattr(elastic, "take_seat", lambda: made)
    monkeypatch.chdir(tmp_path)
    yield made
    destroy_group()  # of a round that failed


def make(checkpoints: Checkpoints | None = None, save_every: Any = 0, dropout: float = 0.0) -> Elastic:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(dropout))
    model.append(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    batches = GlobalBatches(len(DATA), 4)
    return Elastic(model=model, optimizer=optimizer, batches=batches, checkpoints=checkpoints, save_every=save_every)


def trainer(fails: dict[str, int]) -> Callable[[Elastic], list[float]]:
    """Return a training of 9 steps. Its round ends when it first comes to a place of ``fails`` in that step."""

    def at(place: str, step: int) -> None:
        if fails.get(place) == step:
            del fails[place]
            raise RoundEnded

    def train(state: Elastic) -> list[float]:
        for step, (x, y) in state.steps(DATA, last=9):
            at("begin", step)
            loss = torch.nn.functional.mse_loss(state.model(x), y, reduction="sum")
            state.state["steps"] = state.state.get("steps", 0) + 1
            at("forward", step)
            state.optimizer.zero_grad()
            state.scale_loss(loss).backward()
            at("backward", step)
            state.optimizer.step()
            at("optimizer", step)
        return [float(value) for value in torch.cat([p.flatten() for p in state.model.state_dict().values()])]

    return train


@pytest.mark.parametrize("place", ["begin", "forward", "backward"])
def test_a_step_that_fails_before_the_optimizer_leaves_no_trace(place: str) -> None:
    undisturbed = make(dropout=0.5)
    expected = undisturbed.run(trainer({}))
    disturbed = make(dropout=0.5)
    assert disturbed.run(trainer({place: 5})) == expected
    assert disturbed.state == undisturbed.state == {"steps": 9}


def test_a_step_that_fails_twice_leaves_no_trace() -> None:
    """The values of a boundary are the same after each return to it."""
    lists: list[list[int]] = []

    def train(state: Elastic) -> None:
        for step, _ in state.steps(DATA, last=3):
            seen = state.state.setdefault("seen", [])
            lists.append([*seen])
            seen.append(step)
            if step == 1 and len(lists) < 4:
                raise RoundEnded

    made = make()
    made.run(train)
    assert lists == [[], [0], [0], [0], [0, 1]]


def test_the_boundary_releases_the_process_as_long_as_the_training_runs(seat: Seat) -> None:
    """A function that is called by ``resumable`` later may have an ordinary optimizer, whose step releases it."""

    def train(elastic: Elastic) -> None:
        assert seat.releases_at_boundary
        raise ValueError("a defect of the script")

    with pytest.raises(ValueError, match="a defect"):
        make().run(train)
    assert not seat.releases_at_boundary


def test_a_single_rank_has_a_process_group_too() -> None:
    def train(elastic: Elastic) -> int:
        model = torch.nn.parallel.DistributedDataParallel(elastic.model)
        return sum(model(x.float()).shape[0] for _, (x, _) in elastic.steps(DATA, last=3))

    assert make().run(train) == 12
    assert not torch.distributed.is_initialized()


def test_a_state_that_is_not_whole_is_read_from_disk() -> None:
    expected = make().run(trainer({}))
    disturbed = make(Checkpoints("checkpoints"), save_every=2)
    assert disturbed.run(trainer({"optimizer": 5})) == expected
    assert disturbed.state == {"steps": 9}


def test_without_a_whole_state_the_process_cannot_continue() -> None:
    with pytest.raises(RuntimeError, match="no rank has a whole state and there is no checkpoint"):
        make().run(trainer({"optimizer": 5}))


def end_round(*args: Any, **kwargs: Any) -> None:
    raise RoundEnded


@pytest.mark.parametrize("has_state", [True, False])
def test_a_state_that_is_loaded_in_part_is_not_whole(monkeypatch: pytest.MonkeyPatch, has_state: bool) -> None:
    """The round ends after the model has received its new state, and before the optimizer has."""
    newer, made = make(), make()
    newer._commit(8, 32)
    if has_state:
        made._commit(7, 28)
    monkeypatch.setattr(elastic, "gather_objects", lambda held: [held, Held(0, 8)])
    monkeypatch.setattr(elastic, "receive_state", lambda choice, rank: newer._state_dict())
    with monkeypatch.context() as patches:
        patches.setattr(made.optimizer, "load_state_dict", end_round)
        with pytest.raises(RoundEnded):
            made._recover()
    monkeypatch.setattr(elastic, "gather_objects", lambda held: [held])
    with pytest.raises(RuntimeError, match="no rank has a whole state"):
        made._recover()


def test_a_checkpoint_that_is_loaded_in_part_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints("checkpoints")
    expected = make(checkpoints).run(trainer({}))
    made = make(checkpoints)
    with monkeypatch.context() as patches:
        patches.setattr(checkpoints, "load", end_round)
        with pytest.raises(RoundEnded):
            made._recover()
        patches.setattr(checkpoints, "newest", lambda: None)
        with pytest.raises(RuntimeError, match="no rank has a whole state"):
            made._recover()
    made._recover()
    assert made.step == 9 and made.run(trainer({})) == expected


def test_a_checkpoint_that_is_gone_leaves_the_state_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there when the choice was made."""
    made = make(Checkpoints("checkpoints"))
    monkeypatch.setattr(made.checkpoints, "newest", lambda: Held(0, 9))
    made._recover()
    monkeypatch.setattr(made.checkpoints, "newest", lambda: None)
    made._recover()
    assert made.run(trainer({})) == make().run(trainer({}))


def test_another_process_continues_from_the_checkpoint() -> None:
    seen: list[int] = []

    def dies_at(last: int) -> Callable[[Elastic], None]:
        def train(state: Elastic) -> None:
            for step, _ in state.steps(DATA, last=9):
                seen.append(step)
                if step == last:
                    raise ValueError("a defect of the script")

        return train

    for last in (6, 8):
        with pytest.raises(ValueError, match="a defect"):
            make(Checkpoints("checkpoints"), save_every=4).run(dies_at(last))
    assert seen == [*range(7), *range(4, 9)]


def saved_steps() -> list[int]:
    names = [CheckpointName.parse(path.name) for path in Path("checkpoints").iterdir()]
    return sorted(name.step for name in names if name)


def test_checkpoints_are_saved_as_often_as_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic_saves, "best_interval", lambda cost, history: 0.0)
    make(Checkpoints("checkpoints", keep=20), save_every="auto").run(trainer({}))
    assert saved_steps() == [*range(1, 10)]


def test_a_step_with_a_metric_is_saved_with_it() -> None:
    """Its metrics do not belong to other steps, nor to the same step of another round."""

    def train(state: Elastic) -> None:
        for step, (x, _) in state.steps(DATA, last=9):
            assert state.metrics == {}
            state.model(x).sum().backward()
            if step == 3:
                state.metrics["loss"] = 0.5
            if step == 5 and not ends:
                ends.append(step)
                state.metrics["loss"] = 0.1
                raise RoundEnded
            state.optimizer.step()

    ends: list[int] = []
    checkpoints = Checkpoints("checkpoints", keep=1, best="loss")
    make(checkpoints).run(train)
    assert saved_steps() == [4, 9]
    best = checkpoints.load(best=True)
    assert best is not None and (best.step, best.metric, best.state["step"]) == (4, 0.5, 4)


def test_reading_a_sharded_state_leaves_it_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read the state of an optimizer that has none, torch makes a step with it."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    model = torch.nn.Linear(3, 1)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    made = Elastic(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        batches=GlobalBatches(len(DATA), 4),
        checkpoints=Checkpoints("checkpoints"),
        save_every=2,
    )
    monkeypatch.setattr(elastic, "should_stop", lambda: made.step == 2)
    monkeypatch.setattr(elastic, "must_save", lambda: True)
    for _, (x, y) in made.steps(DATA, last=9):
        torch.nn.functional.mse_loss(model(x), y).backward()
        made.optimizer.step()
        made.optimizer.zero_grad()
    assert saved_steps() == [2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"save_every": -1}, "save_every is -1; it must be 'auto', or 0 or more steps"),
        ({"save_every": "often"}, "save_every is 'often'; it must be 'auto', or 0 or more steps"),
        ({"save_every": "auto"}, "save_every needs checkpoints=Checkpoints()"),
        ({"save_every": 5}, "save_every needs checkpoints=Checkpoints()"),
        ({"schedule": 3}, "schedule has no state_dict() and load_state_dict(); put other values into state="),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises((ValueError, TypeError)) as error:
        Elastic(
            model=model,
            optimizer=torch.optim.SGD(model.parameters()),
            batches=GlobalBatches(8, 4),
            **arguments,
        )
    assert str(error.value) == message
