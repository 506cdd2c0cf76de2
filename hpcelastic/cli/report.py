"""``hpcelastic report``: write a report of a run as one HTML file."""

import argparse

from hpcelastic.api.html_report import report_of
from hpcelastic.cli.find import add_run, find_reader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, optional=True)
    parser.add_argument("-o", "--output", metavar="FILE", help="file to write (default: NAME.html, in this directory)")


def run(args: argparse.Namespace) -> int:
    found = find_reader(args)
    print(report_of(found).save(args.output or f"{found.name}.html"))
    return 0
