"""``hpcelastic checkpoint``: let the workers of a run save a checkpoint now, and continue."""

import argparse

from hpcelastic.api.steering import checkpoint
from hpcelastic.cli.find import add_run, find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, optional=True)
    parser.add_argument("--anyway", action="store_true", help="also stop workers that do not save before they stop")


def run(args: argparse.Namespace) -> int:
    print(checkpoint(find_run(args).reader, anyway=args.anyway))
    return 0
