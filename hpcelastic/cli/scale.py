"""``hpcelastic scale``: more nodes for a run, or fewer."""

import argparse

from hpcelastic.cli.find import add_run, find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--nodes", type=int, required=True, metavar="N", help="nodes of a round, from now on")


def run(args: argparse.Namespace) -> int:
    print(find_run(args).scale(args.nodes))
    return 0
