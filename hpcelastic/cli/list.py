"""``hpcelastic list``: list the runs in a directory."""

import argparse
from pathlib import Path

from hpcelastic.api.run import find_runs
from hpcelastic.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", nargs="?", default="runs", metavar="DIR", help="where runs are kept (%(default)s)")


def run(args: argparse.Namespace) -> int:
    directory = Path(args.directory)
    if not directory.is_dir():
        raise ConfigError(f"{directory.absolute()}: no such directory; name the one that holds your runs")
    statuses = [found.status() for found in find_runs(directory)]
    width = max((len(status.name) for status in statuses), default=0)
    for status in statuses:
        print(f"{status.name:{width}}  {status.phase:9}  round {status.round:<3}  {status.reason}")
    if not statuses:
        print(f"no runs in {directory.absolute()}")
    return 0
