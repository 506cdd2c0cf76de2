"""The batches of a run, which depend on the seed and the step alone, never on the world size."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class GlobalBatches:
    """The global batch of every step of a run, whatever number of ranks shares it.

    Every epoch is a fresh shuffle of the data set, cut into batches of ``batch_size``; the last batch of an epoch holds
    the rest, nothing is padded or dropped. A step is counted from 0 through the whole run, so the step in a checkpoint
    is all that is needed to go on, with any number of ranks. Each rank takes its share of every batch::

        batch = batches.indices(step)
        mine = batch[rank::world_size]

    Shares differ by at most one sample and may be empty, so weigh by samples: with the *sum* of the losses over
    ``mine``, times ``world_size / len(batch)``, the mean over ranks that DistributedDataParallel takes is the mean over
    the batch, and training goes the same way with any number of ranks, up to rounding. For a DataLoader, give
    ``batch_sampler=[batches.indices(step)[rank::world_size] for step in range(start, stop)]``, and have at least
    ``world_size`` samples in each batch: a DataLoader cannot make an empty one.
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

    def indices(self, step: int) -> list[int]:
        """Return the indices into the data set that make the batch of ``step``."""
        if step < 0:
            raise ValueError(f"step is {step}; steps are counted from 0")
        epoch, position = divmod(step, self.per_epoch)
        start = position * self.batch_size
        indices: list[int] = _shuffled(self.samples, self.seed + epoch)[start : start + self.batch_size].tolist()
        return indices


@lru_cache(maxsize=2)  # an epoch is asked for step by step
def _shuffled(samples: int, seed: int) -> "torch.Tensor":
    import torch

    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
