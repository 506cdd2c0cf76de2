"""``hpcelastic top``: show runs in a live table."""

import argparse
import sys
from pathlib import Path

from hpcelastic.api.run import find_runs
from hpcelastic.api.top import HELP, top
from hpcelastic.cli.find import add_runs, find_all
from hpcelastic.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser, default="all runs of the directory")
    parser.epilog = f"Keys: {HELP}"


def run(args: argparse.Namespace) -> int:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("top needs a terminal; hpcelastic list and hpcelastic status print once")
    runs = find_all(args) if args.names else find_runs(Path(args.directory))
    if not runs:
        raise ConfigError(f"{Path(args.directory).absolute()}: contains no run; write the runs, or use --in DIR")
    top(runs)
    return 0
