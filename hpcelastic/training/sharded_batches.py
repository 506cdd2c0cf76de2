"""The batches of a run whose data are shards that are read in order."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hpcelastic.errors import ConfigError


class ShardRange(NamedTuple):
    """The samples ``start`` to ``stop`` of a shard, without ``stop``."""

    shard: int
    start: int
    stop: int


class ShardedDataset(Protocol):
    """A data set in shards, such as files, for `ShardedBatches`."""

    def shard(self, index: int, epoch: int, start: int) -> Iterator[Any]:
        """Return an iterator over the samples of shard ``index`` from number ``start`` on.

        The samples and their order follow from ``index`` and ``epoch`` alone. Epochs and samples are counted from 0.
        """


class SequentialShards:
    """A `ShardedDataset` of shards that can be read only from their beginning.

    ``read(index, epoch)`` returns an iterable over all samples of a shard. The samples before the position are read
    again and skipped.

    Examples:
        >>> data = SequentialShards(lambda index, epoch: [f"{index}.{number}" for number in range(4)])
        >>> list(data.shard(1, epoch=0, start=2))
        ['1.2', '1.3']
    """

    def __init__(self, read: Callable[[int, int], Iterable[Any]]) -> None:
        self._read = read

    def shard(self, index: int, epoch: int, start: int) -> Iterator[Any]:
        return itertools.islice(self._read(index, epoch), start, None)


@dataclass(frozen=True)
class ShardedBatches:
    """The global batch of every step of a run whose data are shards, for any number of ranks.

    A step has the next ``per_shard`` samples of each shard, or those that are left of it. So the batch of a step, and
    the position in each shard, follow from the step alone. An epoch ends with the longest shard: shards of similar
    lengths keep the batches large. Each rank reads every ``world_size``-th shard, so there must be at least as many
    shards as ranks. The data set for `Elastic.steps` is a `ShardedDataset`.

    Examples:
        >>> batches = ShardedBatches(lengths=[5, 3, 4], per_shard=2)
        >>> batches.per_epoch, [batches.size(step) for step in range(4)]
        (3, [6, 5, 1, 6])
        >>> batches.ranges(step=1, rank=0, world_size=2)
        [ShardRange(shard=0, start=2, stop=4), ShardRange(shard=2, start=2, stop=4)]
    """

    lengths: Sequence[int]
    """The number of samples in each shard."""

    per_shard: int
    """The number of samples of each shard in a step."""

    seed: int = 0
    """Seed of the random number generators of ranks that join. The data set determines the order of the samples."""

    max_per_rank: int | None = None
    """The most samples that a rank processes at once; see `Elastic.parts`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(self.lengths))
        if not self.lengths:
            raise ValueError("lengths is empty; there must be 1 or more shards")
        numbers = {"per_shard": self.per_shard, "max_per_rank": self.max_per_rank}
        numbers |= {f"the length of shard {shard}": length for shard, length in enumerate(self.lengths)}
        for name, value in numbers.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")

    @property
    def batch_size(self) -> int:
        """Samples in a batch to which all shards contribute."""
        return self.per_shard * len(self.lengths)

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch."""
        return -(-max(self.lengths) // self.per_shard)

    def size(self, step: int) -> int:
        """Return the number of samples in the batch of ``step``."""
        return sum(stop - start for _, start, stop in self.ranges(step, 0, 1))

    def shards(self, rank: int, world_size: int) -> range:
        """Return the shards that ``rank`` reads. Raises ``ConfigError`` if there are fewer shards than ranks."""
        if world_size > len(self.lengths):
            raise ConfigError(
                f"{world_size} ranks cannot share {len(self.lengths)} shards; "
                "divide the data into at least one shard for each rank"
            )
        return range(rank, len(self.lengths), world_size)

    def ranges(self, step: int, rank: int, world_size: int) -> list[ShardRange]:
        """Return the samples that ``rank`` reads in ``step``, in order. Shards of which nothing is left are absent."""
        start = step % self.per_epoch * self.per_shard
        return [
            ShardRange(shard, start, min(start + self.per_shard, self.lengths[shard]))
            for shard in self.shards(rank, world_size)
            if start < self.lengths[shard]
        ]
