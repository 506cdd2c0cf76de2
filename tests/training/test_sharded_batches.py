"""Data in shards: the batch of a step is the same for any number of ranks and of worker processes."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcelastic.errors import ConfigError
from hpcelastic.training import Elastic, SequentialShards, ShardedBatches
from hpcelastic.training.context import Context

LENGTHS = (5, 3, 7, 1, 4)
shards = st.lists(st.integers(1, 20), min_size=1, max_size=8)


class Numbers:
    """Shards whose samples name shard, epoch and number."""

    def shard(self, index: int, epoch: int, start: int) -> Iterator[torch.Tensor]:
        return (torch.tensor([index, epoch, number]) for number in range(start, LENGTHS[index]))


def shares(
    rank: int, world_size: int, first: int = 0, last: int = 8, data: Any = None, **loader: Any
) -> list[torch.Tensor]:
    """Return the shares of the steps from ``first`` to ``last``."""
    model = torch.nn.Linear(1, 1)
    elastic = Elastic(
        model=model,
        optimizer=torch.optim.SGD(model.parameters()),
        batches=ShardedBatches(LENGTHS, per_shard=2),
        loader=loader,
    )
    elastic.step, elastic._worker = first, Context(rank, rank, world_size, 0, "here", None)
    return [batch for _, batch in elastic.steps(data or Numbers(), last)]


def marked(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples) + 100 * len(samples)


@given(shards, st.integers(1, 6), st.integers(0, 3), st.data())
def test_an_epoch_has_each_sample_once_for_any_world_sizes(
    lengths: list[int], per_shard: int, epoch: int, data: st.DataObject
) -> None:
    batches = ShardedBatches(lengths, per_shard)
    seen = []
    for step in range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch):
        world_size = data.draw(st.integers(1, len(lengths)))
        ranges = [each for rank in range(world_size) for each in batches.ranges(step, rank, world_size)]
        seen += [(shard, number) for shard, start, stop in ranges for number in range(start, stop)]
        assert sum(stop - start for _, start, stop in ranges) == batches.size(step)
    assert sorted(seen) == [(shard, number) for shard, length in enumerate(lengths) for number in range(length)]


@given(shards, st.integers(1, 6))
def test_every_step_has_samples_and_all_but_the_last_of_a_shard_are_full(lengths: list[int], per_shard: int) -> None:
    batches = ShardedBatches(lengths, per_shard)
    sizes = [batches.size(step) for step in range(batches.per_epoch)]
    assert min(sizes) > 0
    assert max(sizes) <= batches.batch_size
    assert sum(sizes) == sum(lengths)


def test_the_batches_of_the_data_have_the_order_of_the_shards() -> None:
    batches = shares(0, 1, last=5)
    assert [batch[:, 0].tolist() for batch in batches[:2]] == [[0, 0, 1, 1, 2, 2, 3, 4, 4], [0, 0, 1, 2, 2, 4, 4]]
    assert [batch[:, 2].tolist() for batch in batches[2:4]] == [[4, 4, 5], [6]]
    assert set(batches[3][:, 1].tolist()) == {0}
    assert set(batches[4][:, 1].tolist()) == {1}


@pytest.mark.parametrize("world_size", [2, 3, 5])
@pytest.mark.parametrize("collate", [None, marked], ids=["default", "own"])
def test_worker_processes_change_nothing(world_size: int, collate: Any) -> None:
    """Also if there are more of them than shards, and if their shards end."""
    own = {} if collate is None else {"collate_fn": collate}
    rank = world_size - 2
    expected = shares(rank, world_size, first=1, **own)
    assert any(not len(batch) for batch in expected) == (world_size > 2)
    for num_workers in (1, 2):
        found = shares(rank, world_size, first=1, num_workers=num_workers, **own)
        assert [batch.tolist() for batch in found] == [batch.tolist() for batch in expected]
        assert [batch.shape for batch in found] == [batch.shape for batch in expected]


def test_changes_of_the_world_in_mid_epoch_lose_and_repeat_nothing() -> None:
    seen = []
    for first, last, world_size in ((0, 1, 2), (1, 3, 5), (3, 6, 1), (6, 8, 3)):
        of_ranks = [shares(rank, world_size, first, last, num_workers=rank % 3) for rank in range(world_size)]
        seen += [tuple(sample) for batch in itertools.chain(*of_ranks) for sample in batch.tolist()]
    expected = [(shard, epoch, number) for epoch in (0, 1) for shard in range(5) for number in range(LENGTHS[shard])]
    assert sorted(seen) == sorted(expected)


def test_shards_that_are_read_from_the_beginning_give_the_same() -> None:
    data = SequentialShards(lambda index, epoch: Numbers().shard(index, epoch, 0))
    found, expected = shares(0, 2, first=2, data=data), shares(0, 2, first=2)
    assert [batch.tolist() for batch in found] == [batch.tolist() for batch in expected]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shard_that_ends_early_is_named(num_workers: int) -> None:
    data = SequentialShards(lambda index, epoch: Numbers().shard(index, epoch, 2 if index == 2 else 0))
    with pytest.raises(ConfigError, match="shard 2 has ended after 5 samples; ShardedBatches declares more"):
        shares(0, 1, first=1, data=data, num_workers=num_workers)


def test_more_ranks_than_shards_are_refused() -> None:
    with pytest.raises(ConfigError, match="6 ranks cannot share 5 shards; divide the data into at least one shard"):
        shares(0, 6)


def test_a_data_set_without_shards_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a data set with the method shard"):
        shares(0, 1, data=[1, 2, 3])


@pytest.mark.parametrize(
    ("lengths", "per_shard", "message"),
    [
        ([], 1, "lengths is empty"),
        ([3, 0], 1, "the length of shard 1 is 0; it must be 1 or more"),
        ([3], 0, "per_shard is 0; it must be 1 or more"),
    ],
)
def test_wrong_numbers_are_refused(lengths: list[int], per_shard: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ShardedBatches(lengths, per_shard)
