"""The shares that `Elastic.steps` yields: empty ones, and those of rounds that end in mid-epoch."""

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hpcelastic.errors import ConfigError
from hpcelastic.training import Elastic, GlobalBatches
from hpcelastic.training.context import Context
from hpcelastic.training.loading import Batches, Shares


def make(batches: Batches, **loader: Any) -> Elastic:
    model = torch.nn.Linear(1, 1)
    return Elastic(model=model, optimizer=torch.optim.SGD(model.parameters()), batches=batches, loader=loader)


def at(elastic: Elastic, rank: int, world_size: int, round: int = 1) -> Elastic:
    """Give ``elastic`` its place in a round."""
    elastic._roll_back()
    elastic._worker = Context(rank, rank, world_size, round, "here", None)
    return elastic


class Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((3,), index), "name": f"n{index}", "y": (index, [torch.tensor(index)])}


class ManyNumbers(Numbers):
    """Reads the samples of a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [super(ManyNumbers, self).__getitem__(index) for index in indices]

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("samples are read at once")


def names(samples: list[Any]) -> Any:
    """A collate_fn of a user."""
    return {"x": torch.stack([sample["x"] for sample in samples]), "name": [sample["name"] for sample in samples]}


# Empty shares


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("data", [Numbers(), ManyNumbers()], ids=["one by one", "at once"])
def test_a_share_without_samples_has_the_structure_of_a_batch(data: Numbers, num_workers: int) -> None:
    (_, full), (_, empty) = at(make(GlobalBatches(5, 4), num_workers=num_workers), 1, 2).steps(data, last=2)
    assert full["x"].shape == (2, 3)
    assert empty["x"].shape == (0, 3)
    assert (full["x"].dtype, full["y"][0].dtype) == (empty["x"].dtype, empty["y"][0].dtype)
    assert empty["name"] == []
    assert [len(empty["y"][0]), len(empty["y"][1][0])] == [0, 0]


def test_a_share_without_samples_goes_through_the_users_collate_fn() -> None:
    (_, full), (_, empty) = at(make(GlobalBatches(5, 4), collate_fn=names), 1, 2).steps(Numbers(), last=2)
    assert (full["x"].shape, len(full["name"])) == ((2, 3), 2)
    assert (empty["x"].shape, empty["name"]) == ((0, 3), [])


def test_a_rank_with_an_empty_share_has_a_gradient_of_zero() -> None:
    elastic = at(make(GlobalBatches(5, 4)), 1, 2)
    for step, (x,) in elastic.steps(torch.utils.data.TensorDataset(torch.ones(5, 1)), last=2):
        elastic.model.zero_grad()
        elastic.scale_loss(elastic.model(x).sum()).backward()
        assert elastic.model.weight.grad == (2 * 2 / 4 if step == 0 else 0)


# Each sample once in each epoch


def test_each_committed_epoch_has_each_sample_once_in_any_sequence_of_rounds() -> None:
    """Rounds of random world sizes end at random steps, whose samples are used again in the next round."""
    for seed in range(1000):
        chance = random.Random(seed)
        samples = chance.randint(1, 50)
        per_rank = chance.choice([None, chance.randint(1, 8)])
        batches = GlobalBatches(samples, chance.randint(8, 30), seed, per_rank=per_rank)
        committed: list[int] = []
        world_sizes = set()
        while len(committed) < 3 * samples:
            world_size, steps = chance.randint(1, 8), chance.randint(0, 4)
            world_sizes.add(world_size)
            shares = [
                Shares(batches, Context(rank, rank, world_size, 0, "", None), len(committed), steps + 1)
                for rank in range(world_size)
            ]
            *begun, position = shares[0].positions()
            of_steps = [*itertools.islice(zip(*shares, strict=True), steps)]  # the last one is rolled back
            for start, of_ranks in zip(begun, of_steps, strict=True):
                for share, indices in zip(shares, of_ranks, strict=True):
                    committed += indices[: share.size(start)]
            assert position == len(committed), seed
        for epoch in range(3):
            assert sorted(committed[epoch * samples : (epoch + 1) * samples]) == [*range(samples)], seed


@pytest.mark.parametrize(
    "batches", [GlobalBatches(29, 6), GlobalBatches(29, 6, per_rank=2)], ids=["constant", "per rank"]
)
def test_worker_processes_that_read_ahead_lose_and_repeat_nothing(batches: GlobalBatches) -> None:
    """Each round ends in a step whose samples have been read, and more of them have been read ahead."""
    loader = {"num_workers": 2, "prefetch_factor": 3}
    data = torch.utils.data.TensorDataset(torch.arange(29))
    ranks, history = [make(batches, **loader)], list[int]()
    for round, (world_size, steps) in enumerate(((1, 2), (3, 2), (2, 3), (3, 7))):
        state = ranks[0]._state_dict()
        ranks = [*ranks[:world_size], *(make(batches, **loader) for _ in range(world_size - len(ranks)))]
        for number, rank in enumerate(ranks):
            at(rank, number, world_size, round)._load(state)
        of_steps = zip(*(rank.steps(data, last=100) for rank in ranks), strict=True)
        *complete, _ = itertools.islice(of_steps, steps + 1)
        history += [index for of_ranks in complete for _, (share,) in of_ranks for index in share.tolist()]
        assert [rank.samples for rank in ranks] == [len(history)] * world_size
    assert len(history) >= 2 * 29
    for epoch in range(2):
        assert sorted(history[epoch * 29 : (epoch + 1) * 29]) == [*range(29)]


def test_the_position_is_in_samples() -> None:
    """A checkpoint with a batch of another size continues with the first sample that was not used."""
    before, after = make(GlobalBatches(20, 4)), make(GlobalBatches(20, 6))
    data = torch.utils.data.TensorDataset(torch.arange(20))
    seen = [index for _, (x,) in before.steps(data, last=3) for index in x.tolist()]
    after._load(before._state_dict())
    assert (after.step, after.samples) == (3, 12)
    seen += [index for _, (x,) in after.steps(data, last=5) for index in x.tolist()]
    assert sorted(seen) == [*range(20)]


def test_a_step_needs_its_own_samples() -> None:
    with pytest.raises(ValueError, match="in_order=False"):
        make(GlobalBatches(5, 4), in_order=False)


# Data sets that are iterators


class Stream(torch.utils.data.IterableDataset[Any]):
    """The samples of one of two ranks, divided among worker processes."""

    def __init__(self, rank: int, samples: int = 11) -> None:
        self._rank, self._samples = rank, samples

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        return (torch.tensor(i) for i in range(self._rank + 2 * number, self._samples, 2 * count))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("rounds", [[(0, 9)], [(0, 1), (1, 2), (2, 3), (3, 6), (6, 9)]], ids=["one", "many"])
def test_a_stream_continues_with_the_same_world_size(rounds: list[tuple[int, int]], num_workers: int) -> None:
    """Epochs have 4, 4 and 3 samples. The order is that of the worker processes, which take turns."""
    seen: list[list[int]] = [[], []]
    state = make(GlobalBatches(11, 4))._state_dict()
    for _, last in rounds:
        for rank in range(2):
            elastic = at(make(GlobalBatches(11, 4), num_workers=num_workers), rank, 2)
            elastic._load(state)
            seen[rank] += [i for _, batch in elastic.steps(Stream(rank), last) for i in batch.tolist()]
        state = elastic._state_dict()
    assert seen == [3 * [0, 2, 4, 6, 8, 10], 3 * [1, 3, 5, 7, 9]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_share_of_a_stream_may_be_empty(num_workers: int) -> None:
    """Also if it is the first one of the round."""
    for first in (0, 2):
        elastic = at(make(GlobalBatches(9, 4), num_workers=num_workers), 1, 2)
        elastic.step, elastic._data.samples = first, 4 * first
        batches = [batch for _, batch in elastic.steps(Stream(1, 9), last=4)]
        assert [len(batch) for batch in batches] == [2, 2, 0, 2][first:]
        assert batches[2 - first].dtype == torch.int64


def test_a_stream_cannot_be_divided_anew() -> None:
    elastic = at(make(GlobalBatches(11, 4)), 0, 2)
    next(elastic.steps(Stream(0), last=9))
    newcomer = at(make(GlobalBatches(11, 4)), 0, 3)
    newcomer._load(elastic._state_dict())
    with pytest.raises(ConfigError, match=r"the world size was 2 and is now 3; .* with ShardedBatches"):
        next(newcomer.steps(Stream(0), last=9))
    next(newcomer.steps(torch.arange(11), last=9))  # data with indices are divided anew


def test_only_a_stream_stores_the_world_size() -> None:
    elastic = at(make(GlobalBatches(11, 4)), 0, 2)
    next(elastic.steps(torch.arange(11), last=9))
    assert elastic._state_dict()["data"] == {"samples": 0}


def test_a_stream_that_ends_early_is_refused() -> None:
    elastic = at(make(GlobalBatches(20, 4)), 0, 2)
    with pytest.raises(ConfigError, match="the IterableDataset has ended before this rank had its share"):
        [*elastic.steps(Stream(0), last=9)]


# The size of the batch follows the world size


def test_the_batch_has_as_many_samples_for_each_rank() -> None:
    """The loss is divided by the size of the batch, also by that of the rest of an epoch."""
    data = torch.utils.data.TensorDataset(torch.arange(20.0))
    elastic = make(GlobalBatches(20, 4, per_rank=3))
    found = []
    for world_size, last in ((1, 2), (3, 4), (2, 6)):
        for step, (x,) in at(elastic, 0, world_size).steps(data, last):
            scale = elastic.scale_loss(torch.tensor(1.0)).item()
            found.append((step, elastic.samples, len(x), scale))
    expected = [(0, 0, 3, 3, 1), (1, 3, 3, 3, 1), (2, 6, 3, 9, 3), (3, 15, 2, 5, 3), (4, 20, 3, 6, 2), (5, 26, 3, 6, 2)]
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    for (*_, scale), (*_, size, world_size) in zip(found, expected, strict=True):
        assert math.isclose(scale, world_size / size, rel_tol=1e-6)
