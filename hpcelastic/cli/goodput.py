"""``hpcelastic goodput``: show what the time of a run's nodes went into."""

import argparse

from hpcelastic.api.goodput import goodput_of
from hpcelastic.cli.find import add_runs, find_readers
from hpcelastic.cli.json_output import add_json, print_json
from hpcelastic.cli.parser import number_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
    add_json(parser, "an array of JSON objects, one for each run")
    price = number_of("units of money", or_zero=True)
    parser.add_argument("--price", type=price, metavar="P", help="price of a node for an hour, to show what was lost")


def run(args: argparse.Namespace) -> int:
    found = [goodput_of(each) for each in find_readers(args)]
    if args.json:
        print_json(found)
    else:
        print("\n\n".join("\n".join(each.lines(args.price)) for each in found))
    return 0
