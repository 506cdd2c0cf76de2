"""``hpcelastic config show``: check a job file and print what it means, each value with its origin."""

import argparse

from hpcelastic.config import load, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    what = "print the resolved configuration, each value with where it came from"
    shown = actions.add_parser("show", help=what, description=what[0].upper() + what[1:] + ".")
    shown.add_argument("file", metavar="FILE", help="the job file (YAML)")
    shown.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="keys to set otherwise, such as nodes=2..4")


def run(args: argparse.Namespace) -> int:
    print(show(load(args.file, args.overrides)), end="")
    return 0
