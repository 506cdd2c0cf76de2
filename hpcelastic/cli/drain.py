"""``hpcelastic drain``: remove a node from a run without losing a step."""

import argparse

from hpcelastic.api.steering import shortage
from hpcelastic.cli.find import add_run, find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="name of the node in the run, or name of its machine")
    add_run(parser, optional=True)
    parser.add_argument("--undo", action="store_true", help="allow the node in the run again")


def run(args: argparse.Namespace) -> int:
    found = find_run(args)
    drained = found.drain(args.node, undo=args.undo)
    what = "is allowed again" if args.undo else "leaves at the end of a step"
    print(f"{found.name}: {args.node} {what}; drained: {', '.join(drained) or 'none'}")
    if short := shortage(found.reader):
        print(short)
    return 0
