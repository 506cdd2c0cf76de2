"""``hpcelastic list``: list the runs in a directory."""

import argparse
from pathlib import Path

from hpcelastic.api.run import Run, find_runs
from hpcelastic.errors import ConfigError, StoreError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", nargs="?", default="runs", metavar="DIR", help="where runs are kept (%(default)s)")


def run(args: argparse.Namespace) -> int:
    directory = Path(args.directory)
    if not directory.is_dir():
        raise ConfigError(f"{directory.absolute()}: no such directory; name the one that holds your runs")
    runs = find_runs(directory)
    width = max((len(found.name) for found in runs), default=0)
    for found in runs:
        print(f"{found.name:{width}}  {_line(found)}")
    if not runs:
        print(f"no runs in {directory.absolute()}")
    return 0


def _line(found: Run) -> str:
    try:
        status = found.status()
    except StoreError as error:  # one damaged run must not hide the others
        return f"{'unreadable':9}  {error}"
    return f"{status.phase:9}  round {status.round:<3}  {status.reason}"
