"""The snapshots in the memory of an agent: those of its own workers, and copies of those of another node.

A snapshot of a sharded state is of use only together with those of all other ranks. A rank begins a snapshot once the
last one has been kept for all ranks. So the newest two generations suffice: the last one may be incomplete, and the one
before is complete. Each memory ends with the checksum of its content, as the file of a checkpoint does.
"""

import os
import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from hpcelastic.ipc.worker_channel import Snapshot
from hpcelastic.training.memory import mapped
from hpcelastic.training.retention import CheckpointName
from hpcelastic.training.seals import SEAL_LENGTH, is_whole, seal_memory

_GENERATIONS = 2


@dataclass(frozen=True, eq=False)
class Kept:
    """One snapshot in memory."""

    snapshot: Snapshot
    name: CheckpointName
    fd: int
    """The memory."""

    slot: Hashable = None
    """Identifies the memory of a worker of this node; None for a copy of another node's snapshot."""

    @property
    def size(self) -> int:
        """Bytes of the memory."""
        return self.snapshot.size + SEAL_LENGTH

    @property
    def generation(self) -> tuple[int, int]:
        """The round and the step."""
        return self.name[:2]

    def view(self) -> AbstractContextManager[memoryview]:
        """Map the memory."""
        return mapped(self.fd)

    def is_whole(self) -> bool:
        """Return whether the content has the checksum at the end of the memory."""
        with self.view() as memory:
            return is_whole(memory)

    def duplicate(self) -> "Kept":
        """Return the snapshot with a descriptor of its own, for the caller to close."""
        return replace(self, fd=os.dup(self.fd))

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)

    def __enter__(self) -> "Kept":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class KeptSnapshots:
    """The snapshots that an agent has. Used by several threads."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, CheckpointName], Kept] = {}
        self._sealed: set[Kept] = set()
        self._lock = threading.Lock()

    def add(self, kept: Kept, *, sealed: bool = False) -> bool:
        """Add a snapshot, and drop the generations before the last two. Return whether it belongs to these."""
        with self._lock:
            directory = kept.snapshot.directory
            if kept.slot is not None:
                self._drop(lambda other: other.slot == kept.slot)
            self._drop(lambda other: (other.snapshot.directory, other.name) == (directory, kept.name))
            self._kept[directory, kept.name] = kept
            if sealed:
                self._sealed.add(kept)
            of_directory = [each for each in self._kept.values() if each.snapshot.directory == directory]
            staying = sorted({each.generation for each in of_directory})[-_GENERATIONS:]
            self._drop(lambda other: other.snapshot.directory == directory and other.generation not in staying)
            return kept.generation in staying

    def seal(self, kept: Kept) -> bool:
        """Write the checksum of a snapshot to the end of its memory. Return False if it was dropped meanwhile."""
        copy = self.open(kept.snapshot.directory, kept.name, sealed=False)
        if copy is None:
            return False
        with copy, copy.view() as memory:
            seal_memory(memory)
        with self._lock:
            here = self._kept.get((kept.snapshot.directory, kept.name)) is kept
            if here:
                self._sealed.add(kept)
            return here

    def names(self, directory: str) -> list[CheckpointName]:
        """Return the names of the sealed snapshots of a directory."""
        with self._lock:
            return sorted(each.name for each in self._sealed if each.snapshot.directory == directory)

    def open(self, directory: str, name: CheckpointName, *, sealed: bool = True) -> Kept | None:
        """Return a snapshot with a descriptor of its own, for the caller to close; None if it is not here."""
        with self._lock:
            kept = self._kept.get((directory, name))
            if kept is None or (sealed and kept not in self._sealed):
                return None
            return kept.duplicate()

    def newest(self) -> list[Kept]:
        """Return all sealed snapshots, for the caller to close: the newest first, and copies last in a generation."""
        with self._lock:
            found = sorted(self._sealed, key=lambda kept: (kept.generation, kept.slot is not None), reverse=True)
            return [kept.duplicate() for kept in found]

    def drop(self, slot: Hashable) -> None:
        """Drop the snapshot in the memory of a worker, which is about to be overwritten."""
        with self._lock:
            self._drop(lambda kept: kept.slot == slot)

    def keep_only(self, directory: str, checkpoint: CheckpointName | None) -> None:
        """Drop the snapshots of a directory that do not belong to a checkpoint; all of them for None."""
        with self._lock:
            self._drop(lambda kept: kept.snapshot.directory == directory and kept.name.checkpoint != checkpoint)

    def close(self) -> None:
        """Release all memory."""
        with self._lock:
            self._drop(lambda kept: True)

    # With the lock

    def _drop(self, which: Callable[[Kept], bool]) -> None:
        for key, kept in list(self._kept.items()):
            if which(kept):
                del self._kept[key]
                self._sealed.discard(kept)
                kept.close()
