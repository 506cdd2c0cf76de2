"""``hpcelastic checkpoint``: let the workers of a run save, now, and go on."""

import argparse

from hpcelastic.api.steering import checkpoint
from hpcelastic.cli.find import add_run, find_run
from hpcelastic.store.paths import RunPaths


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, optional=True)
    parser.add_argument("--anyway", action="store_true", help="also if the workers would be stopped without saving")


def run(args: argparse.Namespace) -> int:
    print(checkpoint(RunPaths(find_run(args).directory), anyway=args.anyway))
    return 0
