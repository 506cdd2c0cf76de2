"""Random changes of the world: ranks are lost and join in any place of a step, and the result stays the same.

All ranks are objects in this process. The state of a rank, its batches and the choice of the state with which a round
begins are the real ones. The exchange between the ranks is simulated.
"""

import copy
import itertools
import random
from typing import Any

import pytest
import torch

from hpcelastic.training import Elastic, GlobalBatches, elastic
from hpcelastic.training.context import Context
from hpcelastic.training.recovery import Choice, Held

LAST, SAMPLES = 12, 24
DATA = torch.utils.data.TensorDataset(
    torch.randn(SAMPLES, 3, dtype=torch.double, generator=torch.Generator().manual_seed(1)),
    torch.randn(SAMPLES, 1, dtype=torch.double, generator=torch.Generator().manual_seed(2)),
)
PLACES = ("batch", "backward", "optimizer")
"""The places of a step. When a round ends, some ranks have come to one of them, and the others to the one before."""


def new_rank() -> Elastic:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return Elastic(model=model, optimizer=optimizer, schedule=schedule, batches=GlobalBatches(SAMPLES, 8))


class Exchange:
    """The exchange of the ranks at the beginning of a round, in place of that over the network."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[Held | None] = []
        self._sent: dict[str, Any] = {}
        monkeypatch.setattr(elastic, "gather_objects", lambda held: self.held)
        monkeypatch.setattr(elastic, "send_state", self._send)
        monkeypatch.setattr(elastic, "receive_state", lambda choice, rank: copy.deepcopy(self._sent))

    def _send(self, state: dict[str, Any], choice: Choice, rank: int) -> None:
        self._sent = copy.deepcopy(state)

    def begin(self, ranks: list[Elastic], round: int) -> None:
        """Let the ranks begin a round."""
        for number, rank in enumerate(ranks):
            rank._roll_back()
            rank._worker = Context(number, number, len(ranks), round, "here", None)
        self.held = [rank._held for rank in ranks]
        newest = max((held for held in self.held if held is not None), default=None)
        for rank in sorted(ranks, key=lambda rank: rank._held != newest):  # those that send come first
            rank._recover()


class Round:
    """One round of ``ranks``."""

    def __init__(self, ranks: list[Elastic]) -> None:
        self._ranks = ranks
        self._steps = {id(rank): rank.steps(DATA, last=LAST) for rank in ranks}
        self._batches: dict[int, Any] = {}

    def train(self, chance: random.Random, steps: int) -> bool:
        """Train ``steps`` steps, and end the next one at a random place. Return True if the training ends before."""
        for number in range(steps + 1):
            end = chance.choice(PLACES) if number == steps else ""
            for place in PLACES:
                some = chance.sample(self._ranks, chance.randint(0, len(self._ranks))) if place == end else self._ranks
                for rank in some:
                    getattr(self, f"_{place}")(rank)
                if place == end or not self._batches:
                    return place != end
                if place == "backward":
                    reduce(self._ranks)
        return False

    def _batch(self, rank: Elastic) -> None:
        """The last step of the rank is complete, and it begins the next one."""
        self._batches.pop(id(rank), None)
        for _, batch in itertools.islice(self._steps[id(rank)], 1):
            self._batches[id(rank)] = batch

    def _backward(self, rank: Elastic) -> None:
        x, y = self._batches[id(rank)]
        loss = torch.nn.functional.mse_loss(rank.model(x), y, reduction="sum")
        rank.optimizer.zero_grad()
        rank.scale_loss(loss).backward()

    def _optimizer(self, rank: Elastic) -> None:
        rank.optimizer.step()
        rank.schedule.step()  # type: ignore[attr-defined]
        rank.state["losses"] = [*rank.state.get("losses", []), rank.step]


def reduce(ranks: list[Elastic]) -> None:
    """Give each rank the mean of the gradients, as DistributedDataParallel does."""
    for parameters in zip(*(rank.model.parameters() for rank in ranks), strict=True):
        mean = torch.stack([parameter.grad for parameter in parameters]).mean(0)
        for parameter in parameters:
            parameter.grad = mean.clone()


def change_world(ranks: list[Elastic], chance: random.Random) -> list[Elastic]:
    """Return the ranks of the next round: some of the old ones, of which one has a whole state, and new ones."""
    whole = [rank for rank in ranks if rank._held is not None]
    kept = {id(chance.choice(whole))} if whole else {id(rank) for rank in ranks}
    stay = [rank for rank in ranks if id(rank) in kept or chance.random() < 0.6]
    world = stay + [new_rank() for _ in range(chance.randint(0, 4 - len(stay)))]
    chance.shuffle(world)
    return world


@pytest.fixture(scope="module")
def undisturbed() -> list[torch.Tensor]:
    rank = new_rank()
    assert Round([rank]).train(random.Random(), LAST + 1)  # no step ends early
    return [parameter.detach().clone() for parameter in rank.model.parameters()]


def check_sequences(seeds: range, undisturbed: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> int:
    """Train once with each seed. Return the number of rounds."""
    rounds = 0
    for seed in seeds:
        chance, exchange = random.Random(seed), Exchange(monkeypatch)
        ranks, round, over = [new_rank() for _ in range(chance.randint(1, 4))], 0, False
        while not over:
            round += 1
            exchange.begin(ranks, round)
            over = Round(ranks).train(chance, chance.randint(0, 4))
            if not over:
                before = ranks
                ranks = change_world(ranks, chance)
                if all(rank._held is None for rank in before):
                    break  # only a checkpoint helps, which tests of their own cover
        rounds += round
        if not over:
            continue
        for rank in ranks:
            assert rank.state["losses"] == list(range(LAST)), seed
            for ours, theirs in zip(rank.model.parameters(), undisturbed, strict=True):
                torch.testing.assert_close(ours.detach(), theirs, rtol=1e-9, atol=1e-9, msg=f"seed {seed}")
    return rounds


def test_no_change_of_the_world_changes_the_result(
    undisturbed: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_sequences(range(40), undisturbed, monkeypatch) > 100


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_change_of_many_changes_the_result(undisturbed: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_sequences(range(40, 1040), undisturbed, monkeypatch) > 2500
