"""Old runs: which of them may be removed, and what they take on the filesystem."""

import contextlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hpcelastic.api.prepare import active_process
from hpcelastic.api.registry import DRAFT, REMOVED
from hpcelastic.api.run import Run, find_runs
from hpcelastic.errors import HpcElasticError, SlurmError
from hpcelastic.storage.paths import RunPaths

_ABANDONED = 86400.0
"""Seconds without a change after which a run that has not ended may be removed. Its agents may be on other machines."""

_CHECKPOINTS = "checkpoints"
"""The default directory of `hpcelastic.training.Checkpoints`."""


@dataclass(frozen=True)
class OldRun:
    """A run, and whether it may be removed."""

    name: str
    directory: Path
    phase: str
    age: float
    """Seconds since the last change of a file or directory of the run."""

    files: int
    bytes: int
    kept: str = ""
    """Why it is not removed; empty if it may be."""


def old_runs(directory: Path, age: float, *, with_checkpoints: bool = False) -> list[OldRun]:
    """Return all runs in ``directory``. Those that may be removed have not changed for ``age`` seconds, or for a day if
    they have not ended.

    A run is kept if it is active, if it cannot be read, or if it has checkpoints, unless ``with_checkpoints`` is true.
    """
    return [_examined(run, age, with_checkpoints) for run in find_runs(directory)]


def remove_run(run: OldRun, age: float, *, with_checkpoints: bool = False) -> OldRun:
    """Remove the directory of a run, unless a new look finds a reason to keep it. Returns the result of that look.

    Nothing can be read from the directory any more as soon as the removal begins. Raises OSError.
    """
    try:
        again = _examined(Run(run.directory), age, with_checkpoints)
    except HpcElasticError as error:  # another process has removed it
        return replace(run, kept=str(error))
    if not again.kept:
        doomed = run.directory.with_name(f"{REMOVED}{run.name}-{secrets.token_hex(4)}")
        os.rename(run.directory, doomed)
        shutil.rmtree(doomed)
    return again


def remove_remains(directory: Path) -> list[OSError]:
    """Remove directories of runs whose removal or creation was interrupted. Returns the errors."""
    errors = []
    for path in _remains(directory):
        try:
            if path.is_symlink():
                path.unlink()
            else:
                shutil.rmtree(path)
        except FileNotFoundError:  # another process removes it
            pass
        except OSError as error:  # it belongs to another user
            errors.append(error)
    return errors


def _remains(directory: Path) -> Iterator[Path]:
    """Yield the directories whose removal has begun, and those whose creation has begun more than a day ago."""
    yield from directory.glob(f"{REMOVED}*")
    for path in directory.glob(f"{DRAFT}*"):
        if (changed := _changed(path)) and time.time() - changed > _ABANDONED:
            yield path


def _examined(run: Run, age: float, with_checkpoints: bool) -> OldRun:
    paths = RunPaths(run.directory)
    files, size, changed = 0, 0, time.time()
    phase, kept, least = "unreadable", "", max(age, _ABANDONED)
    try:
        files, size, changed = _usage(run.directory)
        status = run.status()
        phase, least = status.phase, age if status.ended else least
        if active := active_process(paths):
            kept = f"{active} belongs to it"
    except SlurmError as error:
        kept = f"SLURM does not tell whether it has jobs: {error}"
    except (HpcElasticError, OSError) as error:
        kept = f"it cannot be read: {error}"
    since = max(0.0, time.time() - changed)
    if not kept and run.directory.is_symlink():
        kept = "its directory is a symbolic link"
    if not kept and since < least:
        kept = "it is not old enough"
    if not kept and not with_checkpoints and _has_files(run.directory / _CHECKPOINTS):
        kept = "it has checkpoints"
    return OldRun(run.name, run.directory, phase, since, files, size, kept)


def _changed(path: Path) -> float:
    """Return the time of the last change of a file or directory; 0 if there is none."""
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def _usage(directory: Path) -> tuple[int, int, float]:
    """Return the number of files and directories below ``directory``, their bytes on the filesystem, and the time of
    the last change of one of them. Raises OSError.
    """
    count, size, changed = 0, 0, 0.0
    for root, directories, files in os.walk(directory):
        for name in (*directories, *files):
            with contextlib.suppress(FileNotFoundError):  # agents rename and remove files
                found = os.lstat(os.path.join(root, name))
                count += 1
                size += found.st_blocks * 512 if stat.S_ISREG(found.st_mode) else 0
                changed = max(changed, found.st_mtime)
    return count, size, changed


def _has_files(directory: Path) -> bool:
    """Return whether there are files in ``directory``. One that cannot be listed may have some."""
    try:
        return bool(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
