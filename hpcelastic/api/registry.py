"""The runs that a person has started, by name: found from every directory, and after the process that started them.

A convenience, never the truth, which is in the run's directory. One small file for each name, in
``$XDG_STATE_HOME/hpcelastic/runs`` (``~/.local/state`` without that); a later run of the same name replaces it. Whoever
uses the api does so as that person, so the environment is read here.
"""

import difflib
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.config.job import NAME
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.store import files
from hpcelastic.store.bounded import bounded
from hpcelastic.store.paths import RunPaths, noted_runs

_PATIENCE = 5.0
"""Seconds that noting a run may take: the home directory may be on another filesystem, which hangs."""

_SHOWN = 10
"""Names in a message."""


@dataclass(frozen=True)
class Registry:
    """Names and directories of runs, in files of the directory ``place``."""

    place: Path

    def note(self, run: Path) -> None:
        """Remember the run in the directory ``run``. Raises StoreError."""
        files.make_directory(self.place)
        files.publish(self.place / run.name, files.to_json({"directory": str(run)}), durable=False)

    def names(self) -> list[str]:
        return sorted(name for name in files.names(self.place) if NAME.fullmatch(name))

    def directory(self, name: str) -> Path | None:
        """Where the run of this name was when it was started; None if none was noted. Raises StoreError."""
        entry = files.read_json(self.place / name) if NAME.fullmatch(name) else None
        if entry is None:
            return None
        directory = entry.get("directory") if isinstance(entry, dict) else None
        if not isinstance(directory, str):
            raise StoreError(f"{self.place / name}: names no directory; remove the file")
        return Path(directory)

    def dead(self, name: str, directory: Path) -> str:
        """What has become of a noted run that is not in its ``directory`` any more.

        It is forgotten if it was removed; where more than it is missing, a filesystem may just not be mounted.
        """
        if directory.parent.is_dir():
            files.remove(self.place / name)
            return f"was in {directory}, which holds no run any more; it is forgotten now"
        return (
            f"was in {directory}, and {directory.parent} is not there; is its filesystem mounted here? "
            f"If it was removed, remove {self.place / name} too"
        )


def user_registry() -> Registry:
    """That of the person whose process this is. StoreError where they have no home directory."""
    given = os.environ.get("XDG_STATE_HOME", "")
    try:
        return Registry(noted_runs(Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"))
    except RuntimeError as error:
        raise StoreError(f"there is no home directory ({error}); set HOME or XDG_STATE_HOME") from error


def note(run: Path) -> None:
    """Remember the run in the directory ``run``; if that can't be done, a warning says so and all goes on."""
    try:
        bounded(lambda: user_registry().note(run), _PATIENCE, "the registry of runs")
    except (OSError, StoreError) as error:
        warnings.warn(f"{run.name} can be found by its directory only, {run}: {error}", stacklevel=2)


def holds_run(directory: Path) -> bool:
    return RunPaths(directory).register.is_dir()


def locate(name: str, runs: Path) -> Path:
    """The run's directory: ``name`` itself, else ``runs``/``name``, else what was noted under the name.

    Raises ConfigError, with the names that are known, where there is none.
    """
    for directory in (Path(name), runs / name):
        if holds_run(directory):
            return directory
    registry = user_registry()
    noted = registry.directory(name)
    if noted is None:
        raise ConfigError(_unknown(name, runs))
    if not holds_run(noted):
        raise ConfigError(f"{name}: {registry.dead(name, noted)}")
    return noted


def known(runs: Path) -> list[str]:
    """The names of the runs in the directory ``runs``, and of those that were noted."""
    here = (
        [name for name in files.names(runs) if NAME.fullmatch(name) and holds_run(runs / name)] if runs.is_dir() else []
    )
    return sorted({*here, *user_registry().names()})


def _unknown(name: str, runs: Path) -> str:
    there = known(runs)
    close = difflib.get_close_matches(name, there, 3)
    names = ", ".join(there[:_SHOWN]) + (f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else "")
    remedy = f"there are {names}" if there else "is the filesystem that holds it mounted here?"
    if close:
        remedy = f"did you mean {' or '.join(close)}? {remedy[0].upper()}{remedy[1:]}"
    return f"{name}: no such run, neither as a directory, nor noted for you, nor in {runs.absolute()}; {remedy}"
