"""The position of a training in its data, and the sizes of the shares of a step."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from hpcelastic.errors import ConfigError

from .batches import GlobalBatches
from .context import Context
from .nested import TEMPLATE_SIZE, part
from .sharded_batches import ShardedBatches

Batches = GlobalBatches | ShardedBatches


class Loading:
    """The position in the data, and the shares of the ranks from there on. It is part of the state of a training."""

    def __init__(self, batches: Batches, loader: dict[str, Any]) -> None:
        if loader.get("in_order") is False:
            raise ValueError("loader has in_order=False; each step needs its own samples, so leave it out")
        self.batches, self._loader = batches, loader
        self.samples = 0
        """The number of samples in all steps that are complete."""

        self._fixed_world_size: int | None = None
        """The world size of the steps so far, if the data cannot be divided anew."""

    def state_dict(self) -> dict[str, Any]:
        fixed = {} if self._fixed_world_size is None else {"world_size": self._fixed_world_size}
        return {"samples": self.samples, **fixed}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.samples, self._fixed_world_size = saved["samples"], saved.get("world_size")

    def size(self, step: int, world_size: int) -> int:
        """Return the number of samples in the batch of ``step``, which is the current one."""
        if isinstance(self.batches, ShardedBatches):
            return self.batches.size(step)
        return self.batches.size_at(self.samples, world_size)

    def shares(self, data: Any, step: int, last: int, worker: Context) -> Iterator[Any]:
        """Return an iterator over this rank's share of each batch, from ``step`` on."""
        import torch

        from . import loaders

        # A generator of its own: the number of rounds must not change the random numbers of the training.
        generator = torch.Generator(torch.get_default_device()).manual_seed(self.batches.seed + step)
        loader = {"generator": generator, **self._loader}
        if isinstance(self.batches, ShardedBatches):
            self.batches.shards(worker.rank, worker.world_size)  # refuses too few shards
            if not hasattr(data, "shard"):
                raise ConfigError("ShardedBatches needs a data set with the method shard(index, epoch, start)")
            return loaders.sharded_shares(data, self.batches, worker, range(step, last), loader)
        if self.batches.full_size(worker.world_size) < worker.world_size:
            raise ConfigError(
                f"the batch of {self.batches.batch_size} samples is smaller than the {worker.world_size} ranks; "
                "set batch_size of GlobalBatches to at least one sample for each rank"
            )
        shares = Shares(self.batches, worker, self.samples, last - step)
        if isinstance(data, torch.utils.data.IterableDataset):
            self._fix_world_size(worker.world_size)
            return loaders.streamed_shares(data, shares, loader)
        return loaders.indexed_shares(data, shares, loader)

    def _fix_world_size(self, world_size: int) -> None:
        if self._fixed_world_size not in (None, world_size):
            raise ConfigError(
                f"the world size was {self._fixed_world_size} and is now {world_size}; the samples of an "
                "IterableDataset cannot be divided anew, because each rank has read its own part of them; declare the "
                "shards of the data with ShardedBatches, which works with any number of ranks"
            )
        self._fixed_world_size = world_size

    def parts(self, batch: Any, ddp: Any, step: int, worker: Context) -> Iterator[Any]:
        """Yield the pieces of this rank's share; all ranks have the same number of pieces."""
        sizes = self._share_sizes(step, worker.world_size)
        size, limit = sizes[worker.rank], self.batches.max_per_rank
        count = 1 if limit is None else max(1, -(-max(sizes) // limit))
        for number in range(count):
            with ddp.no_sync() if ddp is not None and number < count - 1 else nullcontext():
                start, stop = number * size // count, (number + 1) * size // count
                yield part(batch, size, start, stop) if count > 1 else batch

    def _share_sizes(self, step: int, world_size: int) -> list[int]:
        ranks = range(world_size)
        if isinstance(self.batches, ShardedBatches):
            of_ranks = (self.batches.ranges(step, rank, world_size) for rank in ranks)
            return [sum(stop - start for _, start, stop in ranges) for ranges in of_ranks]
        size = self.size(step, world_size)
        return [len(range(rank, size, world_size)) for rank in ranks]


class Shares:
    """The indices of a rank's share of each batch that follows ``position`` samples, for a DataLoader.

    A DataLoader cannot make an empty batch. In place of an empty share it gets equal samples, of which `nested.empty`
    makes one.
    """

    def __init__(self, batches: GlobalBatches, worker: Context, position: int, steps: int) -> None:
        self.batches, self._position, self._steps = batches, position, steps
        self._rank, self._world_size = worker.rank, worker.world_size

    def __len__(self) -> int:
        return max(0, self._steps)

    def __iter__(self) -> Iterator[list[int]]:
        for position in self.positions():
            batch = self.batches.indices_at(position, self._world_size)
            yield batch[self._rank :: self._world_size] or batch[:1] * TEMPLATE_SIZE

    def positions(self) -> Iterator[int]:
        """Yield the position at which each batch begins."""
        position = self._position
        for _ in range(self._steps):
            yield position
            position += self.batches.size_at(position, self._world_size)

    def size(self, position: int) -> int:
        """Return the number of samples in the share of the batch at ``position``."""
        return len(range(self._rank, self.batches.size_at(position, self._world_size), self._world_size))

    def begins_epoch(self, position: int) -> bool:
        return position % self.batches.samples == 0

    def consumed(self) -> int:
        """Return the number of samples that the rank has had in this epoch, if the world size has not changed in it."""
        full = self.batches.full_size(self._world_size)
        return self._position % self.batches.samples // full * len(range(self._rank, full, self._world_size))
