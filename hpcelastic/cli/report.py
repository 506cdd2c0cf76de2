"""``hpcelastic report``: write a report of a run as one HTML file."""

import argparse

from hpcelastic.cli.find import add_run, find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, optional=True)
    parser.add_argument("-o", "--output", metavar="FILE", help="file to write (default: NAME.html, in this directory)")


def run(args: argparse.Namespace) -> int:
    found = find_run(args)
    print(found.report().save(args.output or f"{found.name}.html"))
    return 0
