"""The registry of the runs that a user has started: it finds a run by its name, from every directory and process.

It is only a convenience: the authoritative state is in the run's directory. It has one small file for each name, in
``$XDG_STATE_HOME/hpcelastic/runs`` (by default in ``~/.local/state``). A later run with the same name replaces the
file. The environment is read here, because a caller of the API acts as this user.
"""

import difflib
import os
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.storage import files
from hpcelastic.storage.bounded import bounded
from hpcelastic.storage.paths import RUN_NAME, RunPaths, run_registry

DRAFT = ".new-"
"""The first part of the name of a directory in which a run is created."""

REMOVED = ".removed-"
"""The first part of the name of a directory whose removal has begun."""

_TIMEOUT = 5.0
"""Seconds for recording a run: the home directory may be on another filesystem that hangs."""

_SHOWN = 10
"""Names in a message."""


@dataclass(frozen=True)
class Registry:
    """Names and directories of runs, in files of the directory ``root``."""

    root: Path

    def record_run(self, run: Path) -> None:
        """Record the run in the directory ``run``. Raises StoreError."""
        files.make_directory(self.root)
        files.publish(self.root / run.name, files.to_json({"directory": str(run)}), durable=False)

    def names(self) -> list[str]:
        return sorted(name for name in files.names(self.root) if RUN_NAME.fullmatch(name))

    def directory(self, name: str) -> Path | None:
        """Return the recorded directory of the run with this name, or None. Raises StoreError."""
        entry = files.read_json(self.root / name) if RUN_NAME.fullmatch(name) else None
        if entry is None:
            return None
        directory = entry.get("directory") if isinstance(entry, dict) else None
        if not isinstance(directory, str):
            raise StoreError(f"{self.root / name}: contains no directory; remove the file")
        return Path(directory)

    def explain_missing(self, name: str, directory: Path) -> str:
        """Explain why a recorded run is not in its ``directory`` any more.

        Removes the record if only the run was removed. If its parent directory is missing too, keeps the record,
        because the filesystem may not be mounted.
        """
        if is_directory(directory.parent):
            files.remove(self.root / name)
            return f"was in {directory}, which contains no run any more; its record is removed now"
        return (
            f"was in {directory}, but {directory.parent} does not exist; is its filesystem mounted here? "
            f"If it was removed, remove {self.root / name} too"
        )


def user_registry() -> Registry:
    """Return the registry of the user of this process. Raises StoreError if the user has no home directory."""
    given = os.environ.get("XDG_STATE_HOME", "")
    try:
        return Registry(run_registry(Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"))
    except RuntimeError as error:
        raise StoreError(f"there is no home directory ({error}); set HOME or XDG_STATE_HOME") from error


def record_run(run: Path) -> None:
    """Record the run in the directory ``run``. Issues a warning if that fails."""
    try:
        bounded(lambda: user_registry().record_run(run), _TIMEOUT, "the registry of runs")
    except (OSError, StoreError) as error:
        warnings.warn(
            f"{run.name} is not recorded, and can only be found by its directory {run}: {error}", stacklevel=2
        )


def is_directory(path: Path) -> bool:
    """Return whether a path is a directory. Raises OSError if that is unknown, for example without access.

    `Path.is_dir` hides such errors since Python 3.14, and the path would be taken for missing.
    """
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def holds_run(directory: Path) -> bool:
    """Return whether a directory is that of a run. Raises OSError if that is unknown, for example without access."""
    return is_directory(RunPaths(directory).register)


def runs_in(directory: Path) -> list[Path]:
    """Return the directories of the runs in ``directory``, by name, without those of others that this user may not see.

    Raises StoreError or OSError if ``directory`` cannot be read.
    """
    names = sorted(name for name in files.names(directory) if not name.startswith("."))
    return [directory / name for name in names if sees_run(directory / name)]


def sees_run(directory: Path) -> bool:
    """Return whether a directory is that of a run that this user may see. Raises OSError, but no PermissionError."""
    try:
        return holds_run(directory)
    except PermissionError:
        return False


def locate(name: str, runs: Path) -> Path:
    """Return the run's directory: ``name`` itself, else ``runs``/``name``, else the recorded directory of the name.

    Raises ConfigError with the known names if there is no such run, and OSError if a directory cannot be read.
    """
    for directory in (Path(name), runs / name):
        if holds_run(directory):
            return directory
    registry = user_registry()
    noted = registry.directory(name)
    if noted is None:
        raise ConfigError(_unknown(name, runs))
    if not holds_run(noted):
        raise ConfigError(f"{name}: {registry.explain_missing(name, noted)}")
    return noted


def known_runs(runs: Path) -> list[str]:
    """Return the names of the runs in the directory ``runs``, and of the recorded runs."""
    here = files.names(runs) if is_directory(runs) else []
    here = [name for name in here if RUN_NAME.fullmatch(name) and sees_run(runs / name)]
    return sorted({*here, *user_registry().names()})


def _unknown(name: str, runs: Path) -> str:
    there = known_runs(runs)
    close = difflib.get_close_matches(name, there, 3)
    names = ", ".join(there[:_SHOWN]) + (f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else "")
    remedy = f"the known runs are {names}" if there else "is its filesystem mounted here?"
    if close:
        remedy = f"did you mean {' or '.join(close)}? {remedy[0].upper()}{remedy[1:]}"
    return f"{name}: no such run: not a directory, not recorded for you, not in {runs.absolute()}; {remedy}"
