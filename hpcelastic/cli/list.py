"""``hpcelastic list``: list the runs in a directory, or all runs that this user has started."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hpcelastic.api.registry import holds_run, user_registry
from hpcelastic.api.run import Run, find_runs
from hpcelastic.cli.json_output import add_json, print_json
from hpcelastic.errors import ConfigError, HpcElasticError


class Row(NamedTuple):
    """A run in the list."""

    name: str
    directory: Path
    phase: str
    """The phase of the run; ``unreadable``, or ``gone`` if its directory does not exist any more."""

    round: int
    reason: str
    progress: str = ""
    """The progress of the training, as text; empty if it is unknown."""

    @property
    def line(self) -> str:
        shown = f"  round {self.round:<3}" if self.phase not in (_UNREADABLE, _GONE) else ""
        progress = f"  [{self.progress}]" if self.progress else ""
        return f"{self.phase:9}{shown}  {self.reason}{progress}"


_UNREADABLE, _GONE = "unreadable", "gone"

_RUNS = "runs"
"""Inserted into the help text directly: before Python 3.12, argparse raises KeyError for a %(default)s of a positional
argument when it parses options and positional arguments intermixed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", nargs="?", default=_RUNS, metavar="DIR", help=f"directory of runs (default: {_RUNS})"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="also list runs in other directories that you have started, with their directories",
    )
    add_json(parser, "an array of JSON objects, one for each run")


def run(args: argparse.Namespace) -> int:
    directory = Path(args.directory)
    if not directory.is_dir() and not args.all:
        raise ConfigError(f"{directory.absolute()}: no such directory; write the directory of your runs, or use --all")
    found = find_runs(directory)
    rows = [_row(run) for run in found]
    if args.all:
        rows += _other_runs({run.directory for run in found})
    if args.json:
        print_json([row._asdict() for row in rows])
        return 0
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        where = f"  {row.directory}" if args.all and row.phase != _GONE else ""
        print(f"{row.name:{width}}  {row.line}{where}")
    if not rows:
        print("no runs" if args.all else f"no runs in {directory.absolute()}")
    return 0


def _other_runs(known: set[Path]) -> Iterator[Row]:
    registry = user_registry()
    for name in registry.names():
        directory = registry.directory(name)
        if directory is None or directory in known:
            continue
        try:
            missing = None if holds_run(directory) else registry.explain_missing(name, directory)
        except OSError as error:
            yield Row(name, directory, _UNREADABLE, 0, str(error))
            continue
        if missing is None:
            yield _row(Run(directory))._replace(name=name)
        else:
            yield Row(name, directory, _GONE, 0, missing)


def _row(found: Run) -> Row:
    try:
        status = found.status()
    except (HpcElasticError, OSError) as error:  # a damaged run must not hide the others
        return Row(found.name, found.directory, _UNREADABLE, 0, str(error))
    progress = "" if status.progress is None else str(status.progress)
    return Row(found.name, found.directory, status.phase, status.round, status.reason, progress)
