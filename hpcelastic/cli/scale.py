"""``hpcelastic scale``: change the number of nodes of a run."""

import argparse

from hpcelastic.api.steering import replace_nodes
from hpcelastic.cli.find import add_run, find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--nodes", type=int, metavar="N", help="number of nodes of the next rounds")
    how.add_argument("--replace", type=int, metavar="K", help=argparse.SUPPRESS)  # used by agents


def run(args: argparse.Namespace) -> int:
    found = find_run(args)
    if args.replace is None:
        print(found.scale(args.nodes))
    else:
        print(replace_nodes(found.reader, args.replace))
    return 0
