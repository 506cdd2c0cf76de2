"""Checkpoints of a run, ordered by round and step: files that are published atomically, and snapshots in memory."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any, Literal

from hpcelastic.errors import StoreError
from hpcelastic.ipc.marks import MarkKind, Source

from .archive import Archive, CannotLayOut, archive_of
from .checkpoint_files import CheckpointFiles
from .context import context
from .control_page import mark
from .fence import Fence, current_fence
from .file_checkpoints import Loaded, load_best, load_newest
from .memory_checkpoints import MemoryCheckpoints
from .phases import marked_phase
from .process_groups import gather_objects, place_in_group
from .recovery import Held
from .retention import CheckpointName, Retention
from .rollback import sparing
from .shards import is_sharded, part_of
from .slots import Slot
from .snapshot_channel import SnapshotChannel, snapshot_channel
from .state_files import unsupported_state, write_state
from .stop import report_progress

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read back."""

    step: int
    """The number of training steps in ``state``. It is also the number of the next step, counted from 0."""

    round: int
    """The round that wrote the checkpoint."""

    state: dict[str, Any]
    """The state that was passed to ``save``."""

    path: Path
    """The file, or the file of rank 0's part of a sharded state."""

    metric: float | None = None
    """The value of the metric that the best checkpoint is chosen by; None if it was not given, or was no number."""

    in_memory: bool = False
    """Whether it was loaded from memory. There may be no file then."""


class Checkpoints:
    """The checkpoints in one directory, on disk and in memory.

    ``directory`` must be on a filesystem that every rank sees. The default is ``checkpoints`` in the run's directory,
    or ``./checkpoints`` outside hpcelastic. ``round`` defaults to this worker's round.

    Each save removes old checkpoints. The newest ``keep`` stay, and with ``keep_every`` each whose step is a multiple
    of it. With ``best`` the one stays whose metric of this name is the smallest, or the greatest with ``mode="max"``.

    Examples:
        Every rank loads; rank 0 saves:

        >>> checkpoints = Checkpoints(keep=2)
        >>> checkpoint = checkpoints.load()
        >>> first = checkpoint.step if checkpoint else 0
        >>> for step in range(first, 3):
        ...     if context().rank == 0:
        ...         path = checkpoints.save(step + 1, {"loss": 1 / (step + 1)})
        >>> newest = checkpoints.load()
        >>> newest.step, newest.state["loss"]
        (3, 0.3333333333333333)

        The best checkpoint stays too:

        >>> checkpoints = Checkpoints("by_loss", keep=1, best="val_loss")
        >>> for step, loss in enumerate([0.5, 0.2, 0.4]):
        ...     path = checkpoints.save(step, {"weights": step}, metrics={"val_loss": loss})
        >>> best = checkpoints.load(best=True)
        >>> best.step, best.metric, checkpoints.load().step
        (1, 0.2, 2)
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        keep: int = 3,
        keep_every: int = 0,
        best: str | None = None,
        mode: Literal["min", "max"] = "min",
        round: int | None = None,
    ) -> None:
        self.retention = Retention(keep, keep_every, best or "", mode)
        worker = context()
        self.directory = Path(directory) if directory is not None else (worker.run_dir or Path()) / "checkpoints"
        self._round = round
        self._reasons: set[str] = set()
        """The reasons for saves without the background, and for missing snapshots, that have been logged."""

        self._lost = False
        """Whether the newest state was not saved, and no error was raised."""

    @property
    def round(self) -> int:
        """The round in whose name checkpoints are saved: the one that was given, or that of this worker."""
        return context().round if self._round is None else self._round

    def save(
        self, step: int, state: dict[str, Any], *, wait: bool = True, metrics: Mapping[str, float] | None = None
    ) -> Path:
        """Publish ``state`` as the checkpoint after ``step`` steps, and return its path. Only rank 0 calls this.

        If ``state`` is sharded, which means that it has tensors of the type DTensor, every rank calls this with its own
        state and publishes a file, and the path is that of this rank. All other values must be equal on all ranks.

        With ``wait=False`` it returns once the state is copied to memory. The agent publishes this snapshot in the
        background, also if this process ends. A snapshot that it has not begun is left out when a newer one follows. A
        sharded one is left out while the last one is being published. If the filesystem refuses, the agent tries again
        and then reports it, and training continues. Without an agent, or with too little memory, the call waits as
        usual, but logs errors of the filesystem. See `flush`.

        ``metrics`` has the metric that the best checkpoint is chosen by. NaN and infinity are never the best. ``state``
        holds tensors, numbers, strings, and dicts, lists, tuples and sets of them. After the return the checkpoint
        survives a power cut. If the process is killed at any instruction, the checkpoints are as before or include the
        complete new one. Raises ``StoreError`` if ``state`` could not be loaded again, if the filesystem refuses, or if
        a newer round has saved or loaded here, which makes this worker a zombie.
        """
        name = CheckpointName(self.round, index(step), self.retention.metric_of(metrics))
        with marked_phase(MarkKind.SAVING):
            if is_sharded(state):
                return self._save_sharded(name, state, wait)
            if wait:
                self._publish(name, state)
            else:
                self._publish_later(name, state)
            return self.directory / str(name)

    def _save_sharded(self, name: CheckpointName, state: dict[str, Any], wait: bool) -> Path:
        """Save this rank's part. All ranks do the same: if one cannot begin or does not succeed, none does."""
        rank, _ = place_in_group()
        # Only one generation at a time is incomplete, so the one before is complete in the memory of all nodes.
        channel = self._channel()
        copying = channel is not None and channel.is_copying()
        ranks = gather_objects((name.metric, not wait and (copying or self.is_saving())))
        name = name._replace(parts=len(ranks), part=rank, metric=ranks[0][0])
        if not wait:
            if any(saving for _, saving in ranks):
                self._lost = True
                log.warning("the checkpoint of step %d is left out: the last one is still being written", name.step)
            else:
                self._publish_later(name, part_of(state, rank))
            return self.directory / str(name)
        error = ""
        try:
            self._publish(name, part_of(state, rank))
        except StoreError as raised:
            error = str(raised)
        for of_rank, reason in enumerate(gather_objects(error)):
            if reason:
                raise StoreError(f"the checkpoint of step {name.step} is not saved: rank {of_rank}: {reason}")
        return self.directory / str(name)

    def _publish(self, name: CheckpointName, state: dict[str, Any]) -> None:
        self.files().publish(name, sparing(self.retention), lambda draft: write_state(state, draft))
        self._lost = False
        report_progress(name.step)

    def _publish_later(self, name: CheckpointName, state: dict[str, Any]) -> None:
        """Publish in the background, or now if that is not possible. Errors of the filesystem are logged."""
        self._lost = False
        reason = self._save_in_background(name, state)
        if reason is None:
            return
        self._warn("saving without the background", reason)
        try:
            self._publish(name, state)
        except StoreError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            self._lost = True
            log.error("the checkpoint of step %d is not saved, and training continues: %s", name.step, error)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the agent has published what this process has saved with ``wait=False``, or has given it up.

        Return False if the newest state is not published, or after ``timeout`` seconds.
        """
        channel = self._channel()
        return (channel is None or channel.wait(timeout)) and not self._lost

    def is_saving(self) -> bool:
        """Return whether the agent has yet to publish what this process has saved with ``wait=False``."""
        channel = self._channel()
        return channel is not None and channel.is_saving()

    def snapshot(self, step: int, state: dict[str, Any]) -> bool:
        """Keep ``state`` in memory: in that of this node's agent, and a copy in that of another node.

        This is cheaper than a save, and `load` returns the state after the loss of any node. If the run ends without
        success, the agents write it to disk. Only rank 0 calls this, or every rank if the state is sharded, as in
        `save`. Raises ``StoreError`` for a state that could not be loaded again, and in a zombie.

        Return whether the snapshot is taken. It is left out while the last one is not kept on all ranks (see
        `is_kept`), without an agent, and, with a warning, with too little memory.

        Examples:
            >>> checkpoints = Checkpoints()
            >>> for step in range(10, 201, 10):  # every tenth on disk, the others in memory
            ...     keep = checkpoints.snapshot if step % 100 else checkpoints.save
            ...     kept = keep(step, {"loss": 1 / step})
            >>> checkpoints.load().step
            200
        """
        channel, sharded, step = self._channel(), is_sharded(state), index(step)
        part = place_in_group()[0] if sharded else 0
        prepared: tuple[Archive, Slot] | str = ""
        if channel is not None and not channel.is_copying():
            prepared = _prepare(channel, part_of(state, part) if sharded else state)
        refusal = prepared if isinstance(prepared, str) else None
        refusals = gather_objects(refusal) if sharded else [refusal]
        for each in refusals:
            if each is not None:
                self._warn("no snapshot in memory", each)
                return False
        assert channel is not None and not isinstance(prepared, str)
        name = CheckpointName(self.round, step, parts=len(refusals) if sharded else 0, part=part)
        with unsupported_state():
            return (
                channel.save(*prepared, self.directory, name, sparing(self.retention), publish=False, copy=True) is None
            )

    def is_kept(self, timeout: float = 0.0) -> bool:
        """Wait up to ``timeout`` seconds until the newest snapshot is sealed, and copied if that is possible.

        Return whether it is. True without a snapshot, and without an agent.
        """
        channel = self._channel()
        return channel is None or channel.is_kept(timeout)

    def _save_in_background(self, name: CheckpointName, state: dict[str, Any]) -> str | None:
        """Hand the state over to the agent. Return None, or the reason if it is impossible: empty without an agent."""
        channel = self._channel()
        prepared = "" if channel is None else _prepare(channel, state)
        if channel is None or isinstance(prepared, str):
            return str(prepared)
        with unsupported_state():
            copy = bool(name.parts)
            return channel.save(*prepared, self.directory, name, sparing(self.retention), publish=True, copy=copy)

    def _channel(self) -> SnapshotChannel | None:
        """Return the channel to the agent; None outside a run."""
        return snapshot_channel() if self.round else None

    def _warn(self, what: str, reason: str) -> None:
        """Log, once for each reason, that something is not possible. The reason is empty without an agent."""
        kind = re.sub(r"\d+", "", reason)  # the amount of free memory changes from save to save
        if kind not in self._reasons and reason:
            self._reasons.add(kind)
            log.warning("%s: %s, because %s", self.directory, what, reason)

    def load(
        self, map_location: Any = "cpu", *, best: bool = False, like: dict[str, Any] | None = None
    ) -> Checkpoint | None:
        """Return the newest complete checkpoint, or None if there is none yet. Every rank calls this.

        It is loaded from memory if a `snapshot`, or a save in the background, is there and is not older than the newest
        file. Otherwise it is loaded from disk, and then no older round can publish here any more. A damaged one is
        skipped with a warning, and the next older one is loaded. With ``best=True`` it is the best one on disk, or the
        next best if that is damaged; None if none has the metric.

        If a process group is initialised, this is a collective (with NCCL, after ``torch.cuda.set_device``), and all
        ranks load the same checkpoint. ``map_location`` is that of ``torch.load``. Raises ``StoreError`` if files exist
        but all are damaged: the user must decide whether to train from the beginning. With ``like``, it is also raised
        if the only state was in memory and is damaged, because ``like`` may have been overwritten in part.

        ``like`` is the state of this script. A load from memory copies the values into its tensors, which are returned
        if they have the same shape and type. This takes no new memory, and so less time. ``like`` is needed if the
        state was sharded when it was saved. Each such tensor is a DTensor of the same shape in ``like``, sharded in any
        way, and receives the values from memory or disk.
        """
        if best and not self.retention.best:
            raise ValueError("load(best=True) needs the name of a metric: Checkpoints(best=...)")
        loaded, source = self._load(map_location, best, like)
        if loaded is not None:
            mark(MarkKind.SOURCE, source)
            mark(MarkKind.RESTORED, loaded.step)
        return loaded

    def newest(self) -> Held | None:
        """Return which state `load` would return, without reading it; None if there is none. Every rank calls this."""
        memory = MemoryCheckpoints(self._channel(), self.directory)
        name = memory.newest(self._newest_file(memory)) or next(iter(self._candidates(best=False)), None)
        return None if name is None else Held(*name[:2])

    def _load(self, map_location: Any, best: bool, like: dict[str, Any] | None) -> tuple[Checkpoint | None, Source]:
        if best:
            found = load_best(self.directory, self._candidates(best), self.retention, map_location, like)
            return self._as_checkpoint(found, False), Source.DISK
        memory = MemoryCheckpoints(self._channel(), self.directory)
        found = memory.load(self._newest_file(memory), map_location, like)
        source = Source.BUDDY if memory.fetched else Source.MEMORY
        in_memory = found is not None
        if found is None:
            source, names = Source.DISK, self._candidates(best)
            memory.warn_of_loss(names)
            found = load_newest(self.directory, names, map_location, like)
        memory.keep_only(found[0] if found is not None and in_memory else None)
        if found is None and memory.failed is not None and like is not None:
            raise StoreError(  # a part of `like` may have been overwritten
                f"the newest state is lost: {memory.failed}; there is no checkpoint on disk; the training begins anew"
            )
        return self._as_checkpoint(found, in_memory), source

    def _as_checkpoint(self, found: Loaded | None, in_memory: bool) -> Checkpoint | None:
        if found is None:
            return None
        name, state = found
        path, metric = self.directory / str(name), name.value(self.retention.best)
        return Checkpoint(name.step, name.round, state, path, metric, in_memory)

    def _newest_file(self, memory: MemoryCheckpoints) -> CheckpointName | None:
        """Return the newest file, as rank 0 sees it, if ``memory`` has a checkpoint. No older round is excluded."""
        if not memory.complete:
            return None
        names = self.files().permitted() if place_in_group()[0] == 0 else []
        return next(iter(gather_objects(names[:1])[0]), None)

    def _candidates(self, best: bool) -> list[CheckpointName]:
        """Return the checkpoints in order, as rank 0 sees them once agents have published and older rounds are out."""
        channel = self._channel()
        if channel is not None:
            channel.await_agent()
        gather_objects(None)  # all ranks have waited
        names: list[CheckpointName] = []
        if place_in_group()[0] == 0:
            files = self.files()
            files.claim()
            names = self.retention.ranked(files.permitted()) if best else files.permitted()
        return gather_objects(names)[0]

    def files(self) -> CheckpointFiles:
        """Return the files of this directory, as this worker's round sees them now.

        The caller may have set the round, even outside a run. Round 0 has no fence.
        """
        fence = replace(current_fence() or Fence("by-hand", 0), round=self.round) if self.round else None
        return CheckpointFiles(self.directory, self.round, fence)


def _prepare(channel: SnapshotChannel, state: dict[str, Any]) -> tuple[Archive, Slot] | str:
    """Return an archive of ``state`` and memory for it, or the reason why there is none."""
    try:
        with unsupported_state():
            archive = archive_of(state)
    except CannotLayOut as error:
        return str(error)
    slot = channel.prepare(archive)
    return slot if isinstance(slot, str) else (archive, slot)
