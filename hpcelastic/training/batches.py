"""The batches of a run. They depend only on the seed and the step, never on the world size."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class GlobalBatches:
    """The global batch of every step of a run, for any number of ranks.

    Every epoch is a new shuffle of the data set, cut into batches of ``batch_size``. The last batch of an epoch holds
    the rest; nothing is padded or dropped. Steps are counted from 0 through the whole run, so training continues from
    the step in a checkpoint alone, with any number of ranks. Each rank takes its share of every batch::

        batch = batches.indices(step)
        mine = batch[rank::world_size]

    Shares differ by at most one sample and may be empty, so weigh by samples: multiply the *sum* of the losses over
    ``mine`` by ``world_size / len(batch)``. Then the mean over ranks, which DistributedDataParallel computes, is the
    mean over the batch, and training is the same with any number of ranks, up to rounding. For a DataLoader, use
    ``batch_sampler=[batches.indices(step)[rank::world_size] for step in range(start, stop)]``, with at least
    ``world_size`` samples in each batch, because a DataLoader cannot make an empty batch.
    """

    samples: int
    """Length of the data set."""

    batch_size: int
    """Samples in a batch, over all ranks."""

    seed: int = 0
    """Epoch ``e`` is shuffled with seed ``seed + e``, as in torch's DistributedSampler."""

    def __post_init__(self) -> None:
        for name in ("samples", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch."""
        return -(-self.samples // self.batch_size)

    def size(self, step: int) -> int:
        """Return the number of samples in the batch of ``step``."""
        return min(self.batch_size, self.samples - step % self.per_epoch * self.batch_size)

    def indices(self, step: int) -> list[int]:
        """Return the indices into the data set of the batch of ``step``."""
        if step < 0:
            raise ValueError(f"step is {step}; steps are counted from 0")
        epoch, position = divmod(step, self.per_epoch)
        start = position * self.batch_size
        indices: list[int] = _shuffled(self.samples, self.seed + epoch)[start : start + self.batch_size].tolist()
        return indices


@lru_cache(maxsize=2)  # all steps of an epoch use the same permutation
def _shuffled(samples: int, seed: int) -> "torch.Tensor":
    import torch

    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed), device="cpu")
