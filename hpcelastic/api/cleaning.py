"""Old runs: which of them may be removed, and what they take on the filesystem."""

import os
import secrets
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.api.prepare import active_process
from hpcelastic.api.run import Run, find_runs
from hpcelastic.errors import HpcElasticError, StoreError
from hpcelastic.storage.paths import RunPaths

_REMOVED = ".removed-"
"""The first part of the name of a directory whose removal has begun."""

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
    """Seconds since an agent has changed the run."""

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


def remove_run(run: OldRun) -> None:
    """Remove the directory of a run, from which nothing can be read any more as soon as that begins. Raises OSError."""
    doomed = run.directory.with_name(f"{_REMOVED}{run.name}-{secrets.token_hex(4)}")
    os.rename(run.directory, doomed)
    shutil.rmtree(doomed)


def remove_remains(directory: Path) -> None:
    """Remove directories of runs whose removal was interrupted. Raises OSError."""
    for path in directory.glob(f"{_REMOVED}*"):
        shutil.rmtree(path)


def _examined(run: Run, age: float, with_checkpoints: bool) -> OldRun:
    paths = RunPaths(run.directory)
    files, size = _usage(run.directory)
    phase, kept, least = "unreadable", "", max(age, _ABANDONED)
    changed = max(path.stat().st_mtime for path in (paths.register, paths.leases) if path.exists())
    since = max(0.0, time.time() - changed)
    try:
        status = run.status()
        phase, least = status.phase, age if status.ended else least
        if active := active_process(paths):
            kept = f"{active} belongs to it"
    except (HpcElasticError, StoreError) as error:
        kept = f"it cannot be read: {error}"
    if not kept and since < least:
        kept = "it is not old enough"
    if not kept and not with_checkpoints and _has_files(run.directory / _CHECKPOINTS):
        kept = "it has checkpoints"
    return OldRun(run.name, run.directory, phase, since, files, size, kept)


def _usage(directory: Path) -> tuple[int, int]:
    """Return the number of files and directories below ``directory``, and their bytes on the filesystem."""
    count = size = 0
    for root, directories, files in os.walk(directory):
        for name in (*directories, *files):
            found = os.lstat(os.path.join(root, name))
            count += 1
            size += found.st_blocks * 512 if stat.S_ISREG(found.st_mode) else 0
    return count, size


def _has_files(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())
