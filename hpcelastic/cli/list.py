"""``hpcelastic list``: list the runs in a directory, or all runs that this user has started."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from hpcelastic.api.registry import holds_run, user_registry
from hpcelastic.api.run import Run, find_runs
from hpcelastic.errors import ConfigError, StoreError

Row = tuple[str, str]
"""The name of a run, and its status."""


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


def run(args: argparse.Namespace) -> int:
    directory = Path(args.directory)
    if not directory.is_dir() and not args.all:
        raise ConfigError(f"{directory.absolute()}: no such directory; write the directory of your runs, or use --all")
    found = find_runs(directory)
    rows = [(run.name, f"{_line(run)}  {run.directory}" if args.all else _line(run)) for run in found]
    if args.all:
        rows += _other_runs({run.directory for run in found})
    width = max((len(name) for name, _ in rows), default=0)
    for name, line in rows:
        print(f"{name:{width}}  {line}")
    if not rows:
        print("no runs" if args.all else f"no runs in {directory.absolute()}")
    return 0


def _other_runs(known: set[Path]) -> Iterator[Row]:
    registry = user_registry()
    for name in registry.names():
        directory = registry.directory(name)
        if directory is None or directory in known:
            continue
        if holds_run(directory):
            yield name, f"{_line(Run(directory))}  {directory}"
        else:
            yield name, f"{'gone':9}  {registry.explain_missing(name, directory)}"


def _line(found: Run) -> str:
    try:
        status = found.status()
    except StoreError as error:  # a damaged run must not hide the others
        return f"{'unreadable':9}  {error}"
    return f"{status.phase:9}  round {status.round:<3}  {status.reason}"
