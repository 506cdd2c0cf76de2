"""The batches of a run: which samples of a data set belong to each step."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

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
    ``world_size`` samples in each batch, because a DataLoader cannot make an empty batch. `Elastic.steps` can.

    With ``per_rank`` the global batch grows and shrinks with the world: it has ``per_rank`` samples for each rank. A
    step alone does not determine its batch then. The position does, which is the number of samples in all steps before.
    See `size_at` and `indices_at`.

    Examples:
        >>> batches = GlobalBatches(samples=10, batch_size=4)
        >>> [batches.size(step) for step in range(6)]
        [4, 4, 2, 4, 4, 2]
        >>> batches = GlobalBatches(samples=10, batch_size=4, per_rank=2, lr="linear")
        >>> batches.size_at(0, world_size=3), batches.size_at(6, world_size=1), batches.size_at(8, world_size=3)
        (6, 2, 2)
    """

    samples: int
    """Length of the data set."""

    batch_size: int
    """Samples in a batch, over all ranks. With ``per_rank``: the size of the batch for which your learning rate is."""

    seed: int = 0
    """Epoch ``e`` is shuffled with seed ``seed + e``, as in torch's DistributedSampler."""

    per_rank: int | None = None
    """Samples in a batch for each rank; None if a batch has ``batch_size`` samples for any number of ranks."""

    lr: Literal["linear", "sqrt"] | None = None
    """How `Elastic` scales the learning rates in each step, if ``per_rank`` is set.

    With ``linear`` by the size of the batch divided by ``batch_size``, with ``sqrt`` by the square root of that.
    """

    max_per_rank: int | None = None
    """The most samples that a rank processes at once; see `Elastic.parts`."""

    def __post_init__(self) -> None:
        for name in ("samples", "batch_size", "per_rank", "max_per_rank"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")
        if self.lr not in (None, "linear", "sqrt"):
            raise ValueError(f"lr is {self.lr!r}; it must be 'linear', 'sqrt' or None")
        if self.lr is not None and self.per_rank is None:
            raise ValueError(f"lr={self.lr!r} needs per_rank; without it, the size of the batch does not change")

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch. Raises ``ValueError`` with ``per_rank``, as `size` and `indices` do."""
        if self.per_rank is not None:
            raise ValueError("with per_rank, the steps depend on the world sizes; use size_at() and indices_at()")
        return -(-self.samples // self.batch_size)

    def size(self, step: int) -> int:
        """Return the number of samples in the batch of ``step``."""
        return self.size_at(self._position(step))

    def indices(self, step: int) -> list[int]:
        """Return the indices into the data set of the batch of ``step``."""
        if step < 0:
            raise ValueError(f"step is {step}; steps are counted from 0")
        return self.indices_at(self._position(step))

    def size_at(self, position: int, world_size: int = 1) -> int:
        """Return the number of samples in the batch that follows ``position`` samples."""
        return min(self.full_size(world_size), self.samples - position % self.samples)

    def indices_at(self, position: int, world_size: int = 1) -> list[int]:
        """Return the indices into the data set of the batch that follows ``position`` samples."""
        epoch, start = divmod(position, self.samples)
        stop = start + self.size_at(position, world_size)
        indices: list[int] = _shuffled(self.samples, self.seed + epoch)[start:stop].tolist()
        return indices

    def full_size(self, world_size: int) -> int:
        """Return the number of samples in each batch but the last of an epoch."""
        return self.batch_size if self.per_rank is None else self.per_rank * world_size

    def lr_factor(self, size: int) -> float:
        """Return the factor of the learning rates in a step whose batch has ``size`` samples."""
        if self.lr is None:
            return 1.0
        return float((size / self.batch_size) ** (1.0 if self.lr == "linear" else 0.5))

    def _position(self, step: int) -> int:
        epoch, number = divmod(step, self.per_epoch)
        return epoch * self.samples + number * self.batch_size


@lru_cache(maxsize=2)  # all steps of an epoch use the same permutation
def _shuffled(samples: int, seed: int) -> "torch.Tensor":
    import torch

    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed), device="cpu")
