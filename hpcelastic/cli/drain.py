"""``hpcelastic drain``: keep a node out of a run, without losing a step."""

import argparse

from hpcelastic.api.steering import shortage
from hpcelastic.cli.find import add_run, find_run
from hpcelastic.store.paths import RunPaths


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="name of the node in the run, or of its machine")
    add_run(parser, optional=True)
    parser.add_argument("--undo", action="store_true", help="let it in again")


def run(args: argparse.Namespace) -> int:
    found = find_run(args)
    drained = found.drain(args.node, undo=args.undo)
    what = "may take part again" if args.undo else "leaves at a step's end"
    print(f"{found.name}: {args.node} {what}; drained: {', '.join(drained) or 'none'}")
    if short := shortage(RunPaths(found.directory)):
        print(short)
    return 0
