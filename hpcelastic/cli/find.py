"""The arguments that name runs: a directory, a name in ``./runs`` or in the directory of ``--in``, or the name of a run
that this user has started from another directory."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hpcelastic.api.registry import locate, runs_in
from hpcelastic.backends.connect import RunReader, creation_time
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.storage.paths import RunPaths

if TYPE_CHECKING:
    from hpcelastic.api.run import Run


def add_run(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add the arguments that name a run."""
    what = "name or directory of the run" + (" (default: the newest run)" if optional else "")
    parser.add_argument("name", metavar="RUN", nargs="?" if optional else None, help=what)
    _add_directory(parser)


def add_runs(parser: argparse.ArgumentParser, default: str = "the newest run") -> None:
    """Add the arguments that name any number of runs. ``default`` describes the runs without a name."""
    what = f"names or directories of runs (default: {default})"
    parser.add_argument("names", metavar="RUN", nargs="*", help=what)
    _add_directory(parser)


def _add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--in", dest="directory", default="runs", metavar="DIR", help="directory of runs (default: %(default)s)"
    )


def find_run(args: argparse.Namespace) -> "Run":
    """Return the run that the arguments name. Raises ConfigError if it does not exist."""
    from hpcelastic.api.run import Run  # not for commands that only read, which shall start fast

    return Run(_find(args.name, Path(args.directory)))


def find_all(args: argparse.Namespace) -> "list[Run]":
    """Return the runs that the arguments of `add_runs` name. Raises ConfigError if one does not exist."""
    from hpcelastic.api.run import Run  # as above

    return [Run(_find(name, Path(args.directory))) for name in args.names or [None]]


def find_reader(args: argparse.Namespace) -> RunReader:
    """Return the reader of the run that the arguments name. Raises ConfigError if the run does not exist."""
    return _reader(args.name, args)


def find_readers(args: argparse.Namespace) -> list[RunReader]:
    """Return the readers of the runs that the arguments of `add_runs` name. Raises ConfigError if one is missing."""
    return [_reader(name, args) for name in args.names or [None]]


def _reader(name: str | None, args: argparse.Namespace) -> RunReader:
    return RunReader(RunPaths(_find(name, Path(args.directory)).absolute()))


def _find(name: str | None, runs: Path) -> Path:
    if name is not None:
        return locate(name, runs)
    found = runs_in(runs)
    if not found:
        raise ConfigError(f"{runs.absolute()}: contains no run; write the run's directory, or use --in DIR")
    return max(found, key=_created)


def _created(run: Path) -> float:
    """Return when a run was created, in seconds since the epoch; 0 if it cannot be read, or has just been removed."""
    try:
        return creation_time(RunPaths(run))
    except (OSError, StoreError):
        return 0.0
