"""The files of checkpoints in one directory: their names, their publication, and their removal.

A file is named after the round that wrote it and its step, ``round-0003.step-00000120.pt``, and after the metric that
checkpoints are compared by, if it has one: ``round-0003.step-00000120.val_loss=0.31.pt``. A state that is sharded over
8 ranks has 8 files, ``round-0003.step-00000120.part-00002-of-00008.pt``. It is a checkpoint once all of them are there.
The newest checkpoint has the highest (round, step). A worker of an older round may still be alive on a node that is
believed dead (a *zombie*). Once the newer round has saved or loaded, the fence refuses every publication of the zombie.
A file that the zombie published before has its older round in the name, so it lies beside the newer round's checkpoints
and sorts before them. This needs no lock and no clock.

A file is what ``torch.save`` writes, a zip archive, with the checksum of all its bytes as the archive's comment. Any
program that reads such archives can read it, and a bit flipped by a disk is detected.
"""

import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hpcelastic.errors import StoreError
from hpcelastic.storage.files import sync_directory

from .fence import Fence
from .publish import publication, publication_error
from .retention import CheckpointName, Retention
from .rollback import permitted_names
from .seals import GONE_ERRORS, has_seal

log = logging.getLogger(__name__)

_READ_ONLY_ERRORS = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True)
class CheckpointFiles:
    """The checkpoints in ``directory``, as a worker of ``round`` sees them."""

    directory: Path
    round: int
    fence: Fence | None
    """The fence of the round; None outside a run."""

    def names(self) -> list[CheckpointName]:
        """Return the published checkpoints, newest first. One of a sharded state is published once all its files are.

        They are found by listing: NFS and MooseFS may cache for half a minute that a name was absent.
        """
        return _complete(self._list())

    def permitted(self) -> list[CheckpointName]:
        """Return those from which training may continue, in the same order. Only workers call this."""
        return permitted_names(self.names())

    def _list(self) -> set[CheckpointName]:
        """Return the names of all files."""
        try:
            found = [CheckpointName.parse(path.name) for path in self.directory.iterdir()]
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise publication_error("list", self.directory, error) from error
        return {name for name in found if name}

    def claim(self) -> None:
        """Exclude older rounds before reading. Otherwise the newest checkpoint could change while ranks search it."""
        if self.fence:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                self.fence.claim(self.directory)
            except OSError as error:
                if error.errno not in _READ_ONLY_ERRORS:  # a zombie can't write either
                    raise publication_error("claim", self.directory, error) from error

    def publish(self, name: CheckpointName, retention: Retention, write: Callable[[BinaryIO], None]) -> Path:
        """Publish the archive that ``write`` writes into an open draft. Remove the checkpoints that need not stay.

        ``write`` also seals it. Raises ``StoreError`` if the filesystem refuses, or a newer round is here.
        """
        self._make_directory()
        self.refuse_zombie()
        path = self.directory / str(name)
        with publication(path, self.fence) as draft:
            write(draft)
        self._remove_old(name, retention)
        return path

    def refuse_zombie(self) -> None:
        """Raise ``StoreError`` if a newer round has published here.

        This stops most zombies early. Safety comes from the file's name, because this listing may be outdated.
        """
        newest = max((name.round for name in self.names()), default=0)
        if newest > self.round:
            raise StoreError(
                f"round {newest} has published in {self.directory}, so this worker of round {self.round} is outdated "
                "and must stop; if you started it by hand, use another directory for it"
            )

    def _make_directory(self) -> None:
        if self.directory.is_dir():
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            sync_directory(self.directory.parent)
        except OSError as error:
            raise publication_error("make", self.directory, error) from error

    def _remove_old(self, saved: CheckpointName, retention: Retention) -> None:
        files = self._list()
        names = _complete(files)
        if not saved.parts or saved.checkpoint in names:  # else another rank completes the checkpoint
            staying = retention.staying(names, saved.checkpoint, self._has_seals)
            for file in files:
                incomplete = file.checkpoint not in names
                if file.checkpoint not in staying and not (incomplete and file[:2] > saved[:2]):
                    _remove(self.directory / str(file))
        for path in self.directory.glob("*.draft"):
            draft = CheckpointName.parse(path.name, draft=True)
            # Drafts of this round may be in use, except those of the file that was just published.
            if draft and (draft.round < self.round or draft._replace(metric=saved.metric) == saved):
                _remove(path)

    def _has_seals(self, name: CheckpointName) -> bool:
        return all(has_seal(self.directory / str(file)) for file in name.files())


def _complete(files: set[CheckpointName]) -> list[CheckpointName]:
    """Return the checkpoints of which all files are there, newest first."""
    checkpoints = {file.checkpoint for file in files}
    return sorted((name for name in checkpoints if files.issuperset(name.files())), reverse=True)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in GONE_ERRORS:  # an extra file is no reason to stop training
            log.warning("cannot remove old %s: %s", path, error.strerror)
