"""Checkpoints of a run: published atomically, ordered by round and step, found by listing.

A file is named after the round that wrote it and its step, ``round-0003.step-00000120.pt``. The newest checkpoint has
the highest (round, step). A worker of an older round may still be alive on a node that is believed dead (a *zombie*).
Once the newer round has saved or loaded, the fence refuses every publication of the zombie. What the zombie published
before carries its own, older round, so it lies beside the newer round's checkpoints and sorts before them. This needs
no lock and no clock.

A file is what ``torch.save`` writes, a zip archive, with the checksum of all its bytes as the archive's comment. Any
program that reads such archives can read it, and a bit flipped by a disk is detected.
"""

import errno
import logging
import os
import pickle
import re
import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hpcelastic.errors import StoreError
from hpcelastic.ipc.marks import MarkKind
from hpcelastic.storage.files import sync_directory

from .context import context
from .control_page import mark
from .fence import Fence, current_fence
from .process_groups import has_process_group
from .publish import publication, publication_error
from .recovery import Held
from .stop import report_progress

log = logging.getLogger(__name__)

_SEAL_LENGTH = 8
_GONE_ERRORS = (errno.ENOENT, errno.ESTALE)  # NFS reports ESTALE if another client has removed the file
_READ_ONLY_ERRORS = (errno.EROFS, errno.EACCES, errno.EPERM)


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


class Checkpoints:
    """The checkpoints in one directory.

    ``directory`` must be on a filesystem that every rank sees. The default is ``checkpoints`` in the run's directory,
    or ``./checkpoints`` outside hpcelastic. The newest ``keep`` checkpoints stay. ``round`` defaults to this worker's
    round.

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
    """

    def __init__(self, directory: str | Path | None = None, *, keep: int = 3, round: int | None = None) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least 1 checkpoint must stay")
        worker = context()
        self.directory = Path(directory) if directory is not None else (worker.run_dir or Path()) / "checkpoints"
        self.keep = keep
        self._round = round

    @property
    def round(self) -> int:
        """The round in whose name checkpoints are saved: the one that was given, or that of this worker."""
        return context().round if self._round is None else self._round

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Publish ``state`` as the checkpoint after ``step`` steps, and return its path. Only rank 0 calls this.

        ``state`` holds tensors, numbers, strings, and dicts, lists, tuples and sets of them. After the return the
        checkpoint survives a power cut. If the process is killed at any instruction, the checkpoints are as before or
        include the complete new one. Raises ``StoreError`` if ``state`` could not be loaded again, if the filesystem
        refuses, or if a newer round has saved or loaded here, which makes this worker a zombie.
        """
        name, fence = _Name(self.round, step), self._fence()
        self._make_directory()
        self._refuse_zombie()
        path = self.directory / str(name)
        with publication(path, fence) as draft:
            _write(state, draft)
        report_progress(step)
        self._remove_old(name)
        return path

    def load(self, map_location: Any = "cpu") -> Checkpoint | None:
        """Return the newest undamaged checkpoint, or None if there is none yet. Every rank calls this.

        A damaged file is skipped with a warning, and the next older one is read. If a process group is initialised,
        this is a collective (with NCCL, after ``torch.cuda.set_device``): rank 0 chooses, and the others read the same
        file. After the call no older round can publish here. ``map_location`` is that of ``torch.load``. Raises
        ``StoreError`` if files exist but all are damaged: the user must decide whether to train from the beginning.
        """
        loaded = self._load(map_location)
        if loaded is not None:
            mark(MarkKind.RESTORED, loaded.step)
        return loaded

    def newest(self) -> Held | None:
        """Return which state the newest checkpoint has, without reading it; None if there is none.

        After the call no older round can publish here.
        """
        self._claim()
        return next((Held(name.round, name.step) for name in self._names()), None)

    def _load(self, map_location: Any) -> Checkpoint | None:
        import torch.distributed as dist

        if not has_process_group():
            return self._load_newest(map_location)
        found = self._load_newest(map_location) if dist.get_rank() == 0 else None
        chosen = [_Name(found.round, found.step) if found else None]
        dist.broadcast_object_list(chosen, src=0)
        if dist.get_rank() == 0 or chosen[0] is None:
            return found
        return self._load_chosen(chosen[0], map_location)

    def _load_newest(self, map_location: Any) -> Checkpoint | None:
        self._claim()
        names = self._names()
        for name in names:
            path = self.directory / str(name)
            try:
                if damage := _find_damage(path):
                    log.warning("checkpoint %s is damaged (%s); loading the next older one", path, damage)
                    continue
                return Checkpoint(name.step, name.round, _read(path, map_location), path)
            except OSError as error:
                if error.errno not in _GONE_ERRORS:
                    raise publication_error("read", path, error) from error
        if names:
            raise StoreError(
                f"all {len(names)} checkpoints in {self.directory} are damaged; check that filesystem, then put an "
                "undamaged checkpoint there, or remove the directory to train from the beginning"
            )
        return None

    def _load_chosen(self, name: "_Name", map_location: Any) -> Checkpoint:
        path = self.directory / str(name)
        try:
            return Checkpoint(name.step, name.round, _read(path, map_location), path)
        except FileNotFoundError as error:
            raise StoreError(
                f"rank 0 resumes from {path.absolute()}, which does not exist on node {context().node}; "
                "put the checkpoints on a filesystem that all nodes share"
            ) from error
        except OSError as error:
            raise publication_error("read", path, error) from error

    def _names(self) -> list["_Name"]:
        """Return the published checkpoints, newest first.

        They are found by listing: NFS and MooseFS may cache for half a minute that a name was absent.
        """
        try:
            found = [_Name.parse(path.name) for path in self.directory.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise publication_error("list", self.directory, error) from error
        return sorted((name for name in found if name), reverse=True)

    def _fence(self) -> Fence | None:
        """Return the fence of `round`, which the caller may have set, even outside a run; None for round 0."""
        if self.round == 0:
            return None
        return replace(current_fence() or Fence("by-hand", self.round), round=self.round)

    def _claim(self) -> None:
        """Exclude older rounds before reading. Otherwise the newest checkpoint could change while ranks search it."""
        if fence := self._fence():
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                fence.claim(self.directory)
            except OSError as error:
                if error.errno not in _READ_ONLY_ERRORS:  # a zombie can't write either
                    raise publication_error("claim", self.directory, error) from error

    def _make_directory(self) -> None:
        if self.directory.is_dir():
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            sync_directory(self.directory.parent)
        except OSError as error:
            raise publication_error("make", self.directory, error) from error

    def _refuse_zombie(self) -> None:
        # This stops most zombies early. Safety comes from the file's name, because this listing may be outdated.
        newest = max((name.round for name in self._names()), default=0)
        if newest > self.round:
            raise StoreError(
                f"round {newest} has published in {self.directory}, so this worker of round {self.round} is outdated "
                "and must stop; if you started it by hand, use another directory for it"
            )

    def _remove_old(self, saved: "_Name") -> None:
        for name in self._names()[self.keep :]:
            if name != saved:  # it is not among the newest if damaged ones of a later step were skipped
                _remove(self.directory / str(name))
        for path in self.directory.glob("*.draft"):
            name_of_draft = _Name.parse(path.name, draft=True)
            # Drafts of this round may be in use, except those of the step that was just published.
            if name_of_draft and (name_of_draft.round < self.round or name_of_draft == saved):
                _remove(path)


class _Name(NamedTuple):
    """The name of a checkpoint file; sorts by age."""

    round: int
    step: int

    def __str__(self) -> str:
        return f"round-{self.round:04}.step-{self.step:08}.pt"

    @classmethod
    def parse(cls, text: str, *, draft: bool = False) -> "_Name | None":
        found = re.fullmatch(r"round-(\d+)\.step-(\d+)\.pt" + (r"\.\w+\.draft" if draft else ""), text)
        return cls(int(found[1]), int(found[2])) if found else None


def _write(state: dict[str, Any], draft: BinaryIO) -> None:
    import torch

    try:
        torch.save(state, draft)
        draft.flush()
        # Read the structure without the tensors, to find out now that a state cannot be loaded, not after a crash.
        with suppress(NotImplementedError):  # raised for a quantized tensor
            torch.load(draft.name, map_location="meta", weights_only=True)
        _seal(draft)
    except (pickle.PickleError, AttributeError, TypeError) as error:  # the errors of pickle for unsupported objects
        raise StoreError(
            f"this state cannot be a checkpoint: {_pickle_error_reason(error)}; give tensors, numbers, strings, and "
            "dicts, lists, tuples and sets of them (state_dict() of a model or an optimizer, .item() of a NumPy number)"
        ) from error


def _read(path: Path, map_location: Any) -> Any:
    import torch

    try:
        # weights_only: a checkpoint must not be able to run code here.
        return torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise StoreError(
            f"cannot load checkpoint {path}: {_pickle_error_reason(error)}; move it away to load the next older one"
        ) from error


def _seal(draft: BinaryIO) -> None:
    """Write the checksum of the archive into its comment.

    torch itself detects a truncated file, but neither zeros within a tensor nor most flipped bits. It does not check
    the archive's checksums of the parts, and these do not cover the archive's directory.
    """
    draft.seek(-2, os.SEEK_END)  # an archive ends with the length of its comment, and torch writes none
    draft.write(_SEAL_LENGTH.to_bytes(2, "little"))
    size = draft.tell()
    draft.seek(0)
    draft.write(_checksum(draft, size))


def _find_damage(path: Path) -> str | None:
    """Return a description of the file's damage; None if every byte is as it was written."""
    try:
        with path.open("rb") as file:
            checksum = _checksum(file, os.fstat(file.fileno()).st_size - _SEAL_LENGTH)
            return None if checksum and checksum == file.read() else "its checksum does not match its content"
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return "the disk cannot read it"


def _checksum(file: BinaryIO, size: int) -> bytes:
    """Read ``size`` bytes and return their CRC-32 in hexadecimal; b"" if there are fewer."""
    checksum = 0
    while size > 0 and (chunk := file.read(min(size, 1 << 20))):
        checksum = zlib.crc32(chunk, checksum)
        size -= len(chunk)
    return b"" if size else f"{checksum:0{_SEAL_LENGTH}x}".encode()


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in _GONE_ERRORS:  # an extra file is no reason to stop training
            log.warning("cannot remove old %s: %s", path, error.strerror)


def _pickle_error_reason(error: Exception) -> str:
    # torch's message also advises how to let a checkpoint run code, which is not useful here.
    if found := re.search(r"GLOBAL ([\w.]*\w)", str(error)):
        return f"it holds {found[1]}"
    found = re.search(r"WeightsUnpickler error: (.*)", str(error))
    return found[1] if found else str(error).partition("\n")[0]
