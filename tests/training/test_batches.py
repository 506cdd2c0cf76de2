from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from hpcelastic.training import GlobalBatches

sizes = st.integers(1, 60)


@given(sizes, sizes, st.integers(0, 5), st.integers(0, 3), st.lists(st.tuples(st.integers(1, 9), st.integers(0, 60))))
def test_an_epoch_has_each_sample_once_for_any_world_sizes(
    samples: int, batch_size: int, seed: int, epoch: int, worlds: list[tuple[int, int]]
) -> None:
    batches = GlobalBatches(samples, batch_size, seed)
    first, last = epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch
    stops = [first]
    for _, length in worlds:
        stops.append(min(last, stops[-1] + length))
    rounds = [(*span, size) for span, (size, _) in zip(pairwise(stops), worlds, strict=True)] + [(stops[-1], last, 2)]
    seen = [
        index
        for start, stop, world_size in rounds
        for rank in range(world_size)
        for step in range(start, stop)
        for index in batches.indices(step)[rank::world_size]
    ]
    assert sorted(seen) == list(range(samples))


def test_the_default_device_of_the_script_does_not_matter() -> None:
    expected = GlobalBatches(20, 4, 1).indices(3)
    with torch.device("meta"):
        assert GlobalBatches(20, 4, 1).indices(3) == expected


@given(sizes, sizes, st.integers(1, 9), st.integers(0, 100))
def test_shares_differ_by_one_sample_at_most(samples: int, batch_size: int, world_size: int, step: int) -> None:
    batch = GlobalBatches(samples, batch_size).indices(step)
    shares = [len(batch[rank::world_size]) for rank in range(world_size)]
    assert max(shares) - min(shares) <= 1
    assert len(batch) == GlobalBatches(samples, batch_size).size(step)


@given(sizes, sizes)
def test_all_batches_but_the_last_of_an_epoch_are_full(samples: int, batch_size: int) -> None:
    batches = GlobalBatches(samples, batch_size)
    *full, last = [len(batches.indices(step)) for step in range(batches.per_epoch)]
    assert set(full) <= {batch_size}
    assert 0 < last <= batch_size


def test_epochs_and_seeds_differ_and_a_step_is_reproducible() -> None:
    batches = GlobalBatches(100, 10)
    epochs = [[batches.indices(step) for step in range(start, start + 10)] for start in (0, 10, 20)]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert GlobalBatches(100, 10, seed=7).indices(0) != epochs[0][0]
    assert GlobalBatches(100, 10).indices(15) == epochs[1][5]


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 40])
def test_the_weighted_mean_over_ranks_is_the_gradient_of_the_global_batch(world_size: int) -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(32, 5, dtype=torch.float64), torch.randint(3, (32,))
    weights = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    batch = GlobalBatches(32, 20).indices(1)  # the rest of the epoch has 12 samples: most of 40 ranks have none

    def gradient(indices: list[int], weight: float) -> torch.Tensor:
        loss = cross_entropy(images[indices] @ weights, labels[indices], reduction="sum") * weight
        return torch.autograd.grad(loss, weights)[0]

    shares = [gradient(batch[rank::world_size], world_size / len(batch)) for rank in range(world_size)]
    torch.testing.assert_close(torch.stack(shares).mean(0), gradient(batch, 1 / len(batch)), rtol=0, atol=1e-14)


def test_a_data_loader_takes_a_share() -> None:
    batches = GlobalBatches(10, 4)
    shares = [batches.indices(step)[1::2] for step in range(3)]
    loader: DataLoader[int] = DataLoader(range(10), batch_sampler=shares)  # type: ignore[arg-type]  # any sequence does
    assert [batch.tolist() for batch in loader] == shares


def test_the_error_names_an_invalid_number() -> None:
    with pytest.raises(ValueError, match="samples is 0"):
        GlobalBatches(0, 4)
    with pytest.raises(ValueError, match="batch_size is 0"):
        GlobalBatches(4, 0)
    with pytest.raises(ValueError, match="step is -1"):
        GlobalBatches(4, 4).indices(-1)
