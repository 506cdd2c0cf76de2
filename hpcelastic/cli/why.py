"""``hpcelastic why``: explain why a round or a run has ended."""

import argparse

from hpcelastic.api.why import why, why_all
from hpcelastic.cli.find import add_run, find_reader
from hpcelastic.cli.json_output import add_json, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, optional=True)
    add_json(parser, "an array of JSON objects, one for each round")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--round", type=int, metavar="N", help="the round (default: the last one that a fault has ended)"
    )
    which.add_argument("--all", action="store_true", help="all rounds")


def run(args: argparse.Namespace) -> int:
    found = find_reader(args)
    explained = why_all(found) if args.all else [why(found, args.round)]
    if args.json:
        print_json(explained)
    else:
        print("\n\n".join(str(each) for each in explained))
    return 0 if all(each.known for each in explained) else 1
