"""Checkpoints in the memory of agents: which of them are complete, and how they are loaded.

Each rank asks the agent of its node, and all ranks know all answers. A rank reads the memory of its own agent directly.
The agent first fetches the parts that it does not have from other agents.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcelastic.ipc.worker_channel import SnapshotList
from hpcelastic.protocol.state import name_of

from .in_place import copied
from .memory import mapped
from .process_groups import gather_objects, place_in_group
from .recovery import Choice, Held
from .retention import CheckpointName
from .rollback import permitted_names
from .seals import is_whole
from .shards import Merge, require_like
from .snapshot_channel import SnapshotChannel
from .state_files import read_state
from .transfer import receive_state, send_state

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failed:
    """A part that a rank needs is damaged, or gone."""

    part: int
    node: str
    reason: str

    def __str__(self) -> str:
        return f"part {self.part} in the memory of {name_of(self.node)}: {self.reason}"


@dataclass(frozen=True)
class InMemory:
    """A checkpoint of which every part is in the memory of an agent."""

    name: CheckpointName
    holders: Mapping[int, Sequence[str]]
    """The nodes that have each part."""

    def without(self, failed: Iterable[Failed]) -> "InMemory | None":
        """Return the checkpoint without parts that could not be loaded; None if it is not complete without them."""
        excluded = {(each.part, each.node) for each in failed}
        left = {part: [node for node in nodes if (part, node) not in excluded] for part, nodes in self.holders.items()}
        return InMemory(self.name, left) if all(left.values()) else None


def complete_checkpoints(lists: Iterable[SnapshotList | None]) -> tuple[list[InMemory], list[CheckpointName]]:
    """Return the complete checkpoints among those that the agents of all ranks have, and the incomplete ones.

    Pure. The newest are first.
    """
    holders: dict[CheckpointName, dict[int, list[str]]] = {}
    for found in lists:
        for name in map(CheckpointName.parse, found.files if found is not None else ()):
            if found is not None and name is not None:
                nodes = holders.setdefault(name.checkpoint, {}).setdefault(name.part, [])
                if found.node not in nodes:
                    nodes.append(found.node)
    names = sorted(holders, reverse=True)
    complete = [InMemory(name, holders[name]) for name in names if len(holders[name]) == max(1, name.parts)]
    return complete, [name for name in names if len(holders[name]) < name.parts]


class MemoryCheckpoints:
    """The checkpoints of one directory in memory. All ranks create this together, and call its methods together.

    ``channel`` is None if this rank has no agent that keeps snapshots.
    """

    def __init__(self, channel: SnapshotChannel | None, directory: Path) -> None:
        self._channel, self._directory = channel, directory
        mine = None if channel is None else channel.kept(directory)
        self._node = "" if mine is None else mine.node
        complete, incomplete = complete_checkpoints(gather_objects(mine))
        self._any = bool(complete or incomplete)
        permitted = {*permitted_names([found.name for found in complete])}
        self.complete = [found for found in complete if found.name in permitted]
        self.incomplete = permitted_names(incomplete)
        self.failed: Failed | None = None
        """The last part that a rank could not read in `load`; None if all ranks have read all parts."""

        self.fetched = False
        """Whether this rank has read a part from the memory of another node's agent."""

    def newest(self, than: CheckpointName | None) -> CheckpointName | None:
        """Return the newest checkpoint in memory, unless it is older ``than`` another one."""
        name = self.complete[0].name if self.complete else None
        return None if name is None or (than is not None and name[:2] < than[:2]) else name

    def load(
        self, than: CheckpointName | None, map_location: Any, like: dict[str, Any] | None
    ) -> tuple[CheckpointName, dict[str, Any]] | None:
        """Return the newest checkpoint in memory that is not older ``than`` another one; None if there is none.

        Raises ``StoreError`` if the state is sharded, and ``like`` does not fit it.
        """
        for found in self.complete:
            candidate: InMemory | None = found
            while candidate is not None and (than is None or candidate.name[:2] >= than[:2]):
                require_like(candidate.name, like, sharded=candidate.name.parts > 0)
                merge = Merge(like or {})
                state, failure = self._read(candidate, merge, map_location, like)
                failures = [each for each in gather_objects(failure) if each is not None]
                if not failures:
                    name = candidate.name
                    return name, merge.state(_share(state, Held(*name[:2]))) if name.parts else state
                self.failed = failures[0]
                if place_in_group()[0] == 0:
                    log.warning("step %d: %s", candidate.name.step, self.failed)
                candidate = candidate.without(failures)
        return None

    def warn_of_loss(self, files: Sequence[CheckpointName]) -> None:
        """Log on rank 0 that a newer state than all ``files`` was in memory, and is lost in part."""
        newest = files[0][:2] if files else (0, 0)
        if place_in_group()[0] == 0 and self.incomplete and self.incomplete[0][:2] > newest:
            where = f"step {files[0].step} on disk" if files else "the beginning"
            lost = self.incomplete[0].step
            log.warning("step %d is lost with the memory of several nodes; continuing from %s", lost, where)

    def keep_only(self, name: CheckpointName | None) -> None:
        """Let the agents drop all snapshots but those of a checkpoint, from which training continues."""
        if self._any:
            gather_objects(None)  # all ranks have read what they need
            if self._channel is not None:
                self._channel.keep_only(self._directory, name)

    def _read(
        self, checkpoint: InMemory, merge: Merge, map_location: Any, like: dict[str, Any] | None
    ) -> tuple[Any, Failed | None]:
        """Read what this rank needs. Return a state that is not sharded, or what is not sharded in the state.

        The latter is None if this rank has not read it. Rank 0 always reads it.
        """
        try:
            if not checkpoint.name.parts:
                with self._open(checkpoint, 0) as path:
                    if like is None or map_location != "cpu":
                        return read_state(path, map_location), None
                    return copied(read_state(path, "cpu", mmap=True), like), None
            rank, ranks = place_in_group()
            parts, others = checkpoint.name.parts, None
            nearest = sorted(range(parts), key=lambda part: abs((part + 0.5) / parts - (rank + 0.5) / ranks))
            for part in nearest:
                if not merge.complete or (part == 0 and rank == 0):
                    with self._open(checkpoint, part) as path:
                        content = read_state(path, "cpu", mmap=True)
                        merge.add(content)
                        if part == 0:
                            others = copied(content["state"], like)
            return others, None
        except _NotRead as error:
            return None, error.failed

    @contextmanager
    def _open(self, checkpoint: InMemory, part: int) -> Iterator[Path]:
        """Provide a path by which the memory of a part can be read. Its content has been checked."""
        nodes = checkpoint.holders[part]
        node = self._node if self._node in nodes else nodes[0]
        self.fetched |= node != self._node
        assert self._channel is not None
        try:
            fd = self._channel.fetch(self._directory, checkpoint.name._replace(part=part), node)
        except OSError as error:
            raise _NotRead(Failed(part, node, str(error))) from error
        try:
            with mapped(fd) as memory:
                if not is_whole(memory):
                    raise _NotRead(Failed(part, node, "its checksum does not match its content"))
            yield Path(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)


class _NotRead(Exception):
    def __init__(self, failed: Failed) -> None:
        super().__init__(str(failed))
        self.failed = failed


def _share(value: Any, held: Held) -> Any:
    """Return the value of a rank that has one, on all ranks. Its tensors are on the CPU."""
    rank, ranks = place_in_group()
    source = gather_objects(value is not None).index(True)
    choice = Choice(held, (source,), tuple(each for each in range(ranks) if each != source))
    if rank != source:
        return receive_state(choice, rank)
    if choice.receivers:
        send_state(value, choice, rank)
    return value
