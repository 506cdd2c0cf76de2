"""Checkpoints of a run: published atomically, ordered by round and step, found by listing.

The files are those of `hpcelastic.training.checkpoint_files`.
"""

import logging
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

from hpcelastic.errors import StoreError
from hpcelastic.ipc.marks import MarkKind

from .archive import CannotLayOut, archive_of, check_loadable
from .background import background_saves
from .checkpoint_files import GONE_ERRORS, CheckpointFiles, find_damage, seal
from .context import context
from .control_page import mark
from .fence import Fence, current_fence
from .process_groups import gather_objects, place_in_group
from .publish import publication_error
from .recovery import Held
from .retention import CheckpointName, Retention
from .shards import is_sharded, merge_parts, part_of
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
    """The file."""

    metric: float | None = None
    """The value of the metric that the best checkpoint is chosen by; None if it was not given, or was no number."""


class Checkpoints:
    """The checkpoints in one directory.

    ``directory`` must be on a filesystem that every rank sees. The default is ``checkpoints`` in the run's directory,
    or ``./checkpoints`` outside hpcelastic. ``round`` defaults to this worker's round.

    Each save removes old checkpoints. The newest ``keep`` stay, and with ``keep_every`` each whose step is a multiple
    of it. With ``best`` the one stays whose metric of this name is the smallest, or the greatest with ``mode="max"``,
    among those saved with that metric.

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
        >>> best.step, best.metric
        (1, 0.2)
        >>> checkpoints.load().step
        2
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
        """The reasons for saves without the background that have been logged."""

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

        If ``state`` has tensors that are sharded, which are of the type DTensor, every rank calls this with its own
        state. Each publishes a file, and the path is that of this rank. All values that are no DTensor must be equal on
        all ranks. With ``wait=False`` such a checkpoint is left out while the last one is still being published.

        With ``wait=False`` it returns once the state is copied to memory, and the agent publishes it in the background,
        also if this process ends meanwhile. A snapshot that the agent has not begun is left out when a newer one
        follows. If the filesystem refuses, the agent tries again and then reports it, and training continues. Without
        an agent, with too little memory, or with torch older than 2.6, the call waits as usual, but logs errors of the
        filesystem instead of raising them. See `flush`.

        ``metrics`` has the metric that the best checkpoint is chosen by. Without it, or if the value is NaN or
        infinite, the checkpoint cannot be the best.

        ``state`` holds tensors, numbers, strings, and dicts, lists, tuples and sets of them. After the return the
        checkpoint survives a power cut. If the process is killed at any instruction, the checkpoints are as before or
        include the complete new one. Raises ``StoreError`` if ``state`` could not be loaded again, if the filesystem
        refuses, or if a newer round has saved or loaded here, which makes this worker a zombie.
        """
        name = CheckpointName(self.round, step, self.retention.metric_of(metrics))
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
        ranks = gather_objects((name.metric, not wait and self.is_saving()))
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
        self._files().publish(name, self.retention, lambda draft: _write(state, draft))
        self._lost = False
        report_progress(name.step)

    def _publish_later(self, name: CheckpointName, state: dict[str, Any]) -> None:
        """Publish in the background, or now if that is not possible. Errors of the filesystem are logged."""
        self._lost = False
        reason = self._save_in_background(name, state)
        if reason is None:
            return
        if reason and reason not in self._reasons:
            self._reasons.add(reason)
            log.warning("%s: saving without the background, because %s", self.directory, reason)
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
        saves = background_saves()
        return (saves is None or saves.wait(timeout)) and not self._lost

    def is_saving(self) -> bool:
        """Return whether the agent has yet to publish what this process has saved with ``wait=False``."""
        saves = background_saves()
        return saves is not None and saves.is_busy()

    def _save_in_background(self, name: CheckpointName, state: dict[str, Any]) -> str | None:
        """Hand the state over to the agent. Return None, or the reason why that is not possible.

        The reason is empty without an agent that publishes.
        """
        saves = background_saves() if self.round else None
        if saves is None:
            return ""
        try:
            with _unsupported_state():
                archive = archive_of(state)
                return saves.save(archive, self.directory, name, self.retention)
        except CannotLayOut as error:
            return str(error)

    def load(
        self, map_location: Any = "cpu", *, best: bool = False, like: dict[str, Any] | None = None
    ) -> Checkpoint | None:
        """Return the newest undamaged checkpoint, or None if there is none yet. Every rank calls this.

        With ``best=True`` it is the best one, or None if none has the metric. A damaged file is skipped with a warning,
        and the next older one is read, or the next best one. If a process group is initialised,
        this is a collective (with NCCL, after ``torch.cuda.set_device``): rank 0 chooses, and the others read the same
        file. After the call no older round can publish here. ``map_location`` is that of ``torch.load``. Raises
        ``StoreError`` if files exist but all are damaged: the user must decide whether to train from the beginning.

        ``like`` is needed if the state was sharded when it was saved. It is the state of this script, in which each
        such tensor is a DTensor of the same shape, sharded in any way over any number of ranks. The tensors receive the
        saved values, and are the tensors of the state that is returned.
        """
        if best and not self.retention.best:
            raise ValueError("load(best=True) needs the name of a metric: Checkpoints(best=...)")
        loaded = self._load(map_location, best, like)
        if loaded is not None:
            mark(MarkKind.RESTORED, loaded.step)
        return loaded

    def newest(self) -> Held | None:
        """Return which state the newest checkpoint has, without reading it; None if there is none.

        Every rank calls this. After the call no older round can publish here.
        """
        return next((Held(name.round, name.step) for name in self._candidates(best=False)), None)

    def _load(self, map_location: Any, best: bool, like: dict[str, Any] | None) -> Checkpoint | None:
        rank, world_size = place_in_group()
        names = self._candidates(best)
        for name in names:
            damages = gather_objects(self._find_damage(name.files()[rank::world_size]))
            if not any(damages):
                return self._read(name, map_location, like)
            if rank == 0:
                following = "next best" if best else "next older"
                log.warning("checkpoint %s; loading the %s one", next(filter(None, damages)), following)
        if names:
            which, remedy = "", "put an undamaged checkpoint there, or remove the directory to train from the beginning"
            if best:
                which, remedy = f" with {self.retention.best}", "load the newest checkpoint instead"
            raise StoreError(
                f"all {len(names)} checkpoints{which} in {self.directory} are damaged; check that filesystem, then "
                f"{remedy}"
            )
        return None

    def _candidates(self, best: bool) -> list[CheckpointName]:
        """Return the checkpoints in the order of age or of the metric. Rank 0 chooses, and all ranks get its answer.

        Before that, the agents of all ranks publish what earlier rounds have left, and older rounds are excluded.
        """
        saves = background_saves() if self.round else None
        if saves is not None:
            saves.await_agent()
        gather_objects(None)  # all ranks have waited
        names: list[CheckpointName] = []
        if place_in_group()[0] == 0:
            files = self._files()
            files.claim()
            names = self.retention.ranked(files.names()) if best else files.names()
        return gather_objects(names)[0]

    def _find_damage(self, files: list[CheckpointName]) -> str:
        """Return a description of the first damage in ``files``; empty if they are whole."""
        for name in files:
            path = self.directory / str(name)
            try:
                if damage := find_damage(path):
                    return f"{path} is damaged ({damage})"
            except OSError as error:
                if error.errno not in GONE_ERRORS:
                    raise publication_error("read", path, error) from error
                return f"{path} was removed"
        return ""

    def _read(self, name: CheckpointName, map_location: Any, like: dict[str, Any] | None) -> Checkpoint:
        path = self.directory / str(name)
        if name.parts and like is None:
            raise StoreError(
                f"{path} is a part of a sharded state; give load(like=...) the state of this script, whose tensors are "
                "sharded too"
            )
        try:
            if like is None or not name.parts:
                state = _read(path, map_location)
            else:
                state = merge_parts(
                    [_read(self.directory / str(file), "cpu", mmap=True) for file in name.files()], like
                )
        except FileNotFoundError as error:
            raise StoreError(
                f"rank 0 resumes from {path.absolute()}, which does not exist on node {context().node}; "
                "put the checkpoints on a filesystem that all nodes share"
            ) from error
        except OSError as error:
            raise publication_error("read", path, error) from error
        return Checkpoint(name.step, name.round, state, path, name.value(self.retention.best))

    def _files(self) -> CheckpointFiles:
        """Return the files of this directory, as this worker's round sees them now."""
        return CheckpointFiles(self.directory, self.round, self._fence())

    def _fence(self) -> Fence | None:
        """Return the fence of `round`, which the caller may have set, even outside a run; None for round 0."""
        if self.round == 0:
            return None
        return replace(current_fence() or Fence("by-hand", self.round), round=self.round)


def _write(state: dict[str, Any], draft: BinaryIO) -> None:
    import torch

    with _unsupported_state():
        torch.save(state, draft)
        draft.flush()
        check_loadable(draft.name)
        seal(draft)


@contextmanager
def _unsupported_state() -> Iterator[None]:
    """Convert the errors of pickle into a ``StoreError`` with advice."""
    try:
        yield
    except (pickle.PickleError, AttributeError, TypeError) as error:  # the errors of pickle for unsupported objects
        raise StoreError(
            f"this state cannot be a checkpoint: {_pickle_error_reason(error)}; give tensors, numbers, strings, and "
            "dicts, lists, tuples and sets of them (state_dict() of a model or an optimizer, .item() of a NumPy number)"
        ) from error


def _read(path: Path, map_location: Any, mmap: bool = False) -> Any:
    import torch

    try:
        # weights_only: a checkpoint must not be able to run code here.
        return torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise StoreError(
            f"cannot load checkpoint {path}: {_pickle_error_reason(error)}; move it away to load the next older one"
        ) from error


def _pickle_error_reason(error: Exception) -> str:
    # torch's message also advises how to let a checkpoint run code, which is not useful here.
    if found := re.search(r"GLOBAL ([\w.]*\w)", str(error)):
        return f"it holds {found[1]}"
    found = re.search(r"WeightsUnpickler error: (.*)", str(error))
    return found[1] if found else str(error).partition("\n")[0]
