"""``hpcelastic stacks``: show what the workers of a run do now."""

import argparse
import sys

from hpcelastic.api.stacks import stacks
from hpcelastic.cli.find import add_run, find_run
from hpcelastic.cli.json_output import add_json, print_json
from hpcelastic.cli.parser import number_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, optional=True)
    add_json(parser, "a JSON object with the text of each node")
    parser.add_argument(
        "--timeout",
        type=number_of("seconds"),
        default=10.0,
        metavar="S",
        help="seconds to wait for all nodes (default: %(default)g)",
    )


def run(args: argparse.Namespace) -> int:
    found = stacks(find_run(args).reader, args.timeout, lambda line: print(line, file=sys.stderr))
    if args.json:
        print_json(found)
    else:
        print("\n".join(f"{node}:\n\n{text}" for node, text in found.items()), end="")
    return 0
