"""``hpcelastic config show``: check a job file and print what it means, each value with its origin."""

import argparse
import os

from hpcelastic.cli.job import add_job
from hpcelastic.config import choose_profile, load, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    what = "print the resolved configuration, each value with where it came from"
    shown = actions.add_parser("show", help=what, description=what[0].upper() + what[1:] + ".")
    add_job(shown)


def run(args: argparse.Namespace) -> int:
    print(show(load(args.file, args.overrides, profile=choose_profile(args.profile, os.environ))), end="")
    return 0
