"""The argument that names a run: its directory, its name in ``./runs`` or in the directory of ``--in``, or the name of
a run that this user has started from another directory."""

import argparse
from pathlib import Path

from hpcelastic.api.run import Run, find_runs
from hpcelastic.errors import ConfigError


def add_run(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add the arguments that name a run."""
    what = "name or directory of the run" + (" (default: the newest run)" if optional else "")
    parser.add_argument("name", metavar="RUN", nargs="?" if optional else None, help=what)
    _add_directory(parser)


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name any number of runs."""
    what = "names or directories of runs (default: the newest run)"
    parser.add_argument("names", metavar="RUN", nargs="*", help=what)
    _add_directory(parser)


def _add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--in", dest="directory", default="runs", metavar="DIR", help="directory of runs (default: %(default)s)"
    )


def find_run(args: argparse.Namespace) -> Run:
    """Return the run that the arguments name. Raises ConfigError if it does not exist."""
    return _find(args.name, Path(args.directory))


def find_all(args: argparse.Namespace) -> list[Run]:
    """Return the runs that the arguments of `add_runs` name. Raises ConfigError if one does not exist."""
    return [_find(name, Path(args.directory)) for name in args.names or [None]]


def _find(name: str | None, runs: Path) -> Run:
    if name is None:
        found = find_runs(runs)
        if not found:
            raise ConfigError(f"{runs.absolute()}: contains no run; write the run's directory, or use --in DIR")
        return max(found, key=lambda run: run.directory.stat().st_ctime)
    return Run.open(name, runs=runs)
