"""The DataLoaders of `Elastic.steps`, which yield one rank's share of each batch."""

import itertools
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from hpcelastic.errors import ConfigError

from .context import Context
from .loading import Shares
from .nested import TEMPLATE_SIZE, empty, join
from .sharded_batches import ShardedBatches, ShardedDataset, ShardRange

Collate = Callable[[list[Any]], Any]


def indexed_shares(data: Any, shares: Shares, loader: dict[str, Any]) -> Iterator[Any]:
    """Return an iterator over the shares of a map-style data set."""
    batches = iter(DataLoader(data, batch_sampler=shares, **loader))
    return (
        batch if shares.size(position) else empty(batch)
        for position, batch in zip(shares.positions(), batches, strict=True)
    )


def streamed_shares(data: "IterableDataset[Any]", shares: Shares, loader: dict[str, Any]) -> Iterator[Any]:
    """Yield the shares of a data set whose iterator yields the samples of this rank in an epoch.

    The samples of this rank before the position are read again and skipped.
    """
    collate: Collate = loader.get("collate_fn") or default_collate
    # A worker process sends bytes: one descriptor for each tensor in shared memory could be too many.
    encode, decode = (pickle.dumps, _unpickled) if loader.get("num_workers") else (_unchanged, _unchanged)
    samples = DataLoader(data, **{**loader, "batch_size": None, "collate_fn": encode})
    stream = iter(samples)
    last = deque(itertools.islice(stream, shares.consumed()), maxlen=1)
    for position in shares.positions():
        if shares.begins_epoch(position) and last:
            stream = iter(samples)
        share = [*itertools.islice(stream, shares.size(position))]
        last.extend(share)
        if len(share) < shares.size(position) or not last:
            raise ConfigError(
                "the IterableDataset has ended before this rank had its share of an epoch; on each rank it must yield "
                "the samples of this rank, and on all ranks together as many as GlobalBatches declares"
            )
        yield collate([decode(sample) for sample in share]) if share else _empty(collate, decode(last[0]))


def sharded_shares(
    data: ShardedDataset, batches: ShardedBatches, worker: Context, steps: range, loader: dict[str, Any]
) -> Iterator[Any]:
    """Return an iterator over the shares of a data set in shards.

    The shards of the rank are divided among the worker processes of the DataLoader in blocks, so the parts of a step,
    in the order of the processes, are in the order of the shards.
    """
    given = cast("Collate | None", loader.get("collate_fn"))
    count = max(1, loader.get("num_workers", 0))
    reader = _ShardReader(data, batches, worker, steps, _in_worker(given, count))
    parts = iter(DataLoader(reader, **{**loader, "batch_size": None, "collate_fn": _unchanged}))
    return _joined(data, batches, worker, steps, parts, count, given)


def _joined(
    data: ShardedDataset,
    batches: ShardedBatches,
    worker: Context,
    steps: range,
    parts: Iterator[Any],
    count: int,
    given: Collate | None,
) -> Iterator[Any]:
    template = None
    for step in steps:
        found = [part for part in itertools.islice(parts, count) if part is not None]
        if not found:
            if template is None:
                shard = batches.shards(worker.rank, worker.world_size)[0]
                sample = _read(data.shard(shard, step // batches.per_epoch, 0), ShardRange(shard, 0, 1))[0]
                template = _empty(given or default_collate, sample)
            yield template
        elif count == 1:
            yield found[0]
        elif given is None:
            yield join(found)
        else:
            yield given([sample for part in found for sample in _unpickled(part)])


def _in_worker(given: Collate | None, count: int) -> Collate:
    """Return what a worker process makes of its samples in a step.

    Batches of a function of the user cannot be joined, so the samples are sent. See `streamed_shares` for the bytes.
    """
    return cast(Collate, pickle.dumps) if given is not None and count > 1 else given or default_collate


class _ShardReader(IterableDataset[Any]):
    """The batches of the shards of one rank, or of those that belong to one worker process of its DataLoader."""

    def __init__(
        self, data: ShardedDataset, batches: ShardedBatches, worker: Context, steps: range, collate: Collate
    ) -> None:
        self._data, self._batches, self._worker, self._steps, self._collate = data, batches, worker, steps, collate

    def __iter__(self) -> Iterator[Any]:
        """Yield the batch of each step, or None if nothing is left of the shards."""
        shards = self._block(self._batches.shards(self._worker.rank, self._worker.world_size))
        readers: dict[int, Iterator[Any]] = {}
        for step in self._steps:
            epoch, number = divmod(step, self._batches.per_epoch)
            if number == 0:
                readers.clear()
            samples: list[Any] = []
            for part in self._batches.ranges(step, self._worker.rank, self._worker.world_size):
                if part.shard in shards:
                    if part.shard not in readers:
                        readers[part.shard] = iter(self._data.shard(part.shard, epoch, part.start))
                    samples += _read(readers[part.shard], part)
            yield self._collate(samples) if samples else None

    def _block(self, shards: range) -> range:
        """Return the part of ``shards`` that belongs to this process."""
        process = get_worker_info()
        if process is None:
            return shards
        number, count = process.id, process.num_workers
        return shards[number * len(shards) // count : (number + 1) * len(shards) // count]


def _read(reader: Iterable[Any], part: ShardRange) -> list[Any]:
    samples = [*itertools.islice(reader, part.stop - part.start)]
    if len(samples) < part.stop - part.start:
        raise ConfigError(
            f"shard {part.shard} has ended after {part.start + len(samples)} samples; ShardedBatches declares more, so "
            "correct its lengths"
        )
    return samples


def _empty(collate: Collate, sample: Any) -> Any:
    return empty(collate([sample] * TEMPLATE_SIZE))


def _unchanged(part: Any) -> Any:
    return part


def _unpickled(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301  from a worker process of this DataLoader
