"""``hpcelastic forgive``: let what went wrong on nodes of a run count no longer."""

import argparse

from hpcelastic.cli.find import add_run, find_run
from hpcelastic.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="nodes to take in again")
    parser.add_argument("--all", action="store_true", help="all nodes of the run")


def run(args: argparse.Namespace) -> int:
    if bool(args.nodes) == args.all:
        raise ConfigError("name the nodes to forgive, or give --all; hpcelastic status shows which there are")
    forgiven = find_run(args).forgive(*args.nodes)
    if unknown := sorted(set(args.nodes) - set(forgiven)):
        raise ConfigError(f"{', '.join(unknown)}: nothing is held against it; hpcelastic status shows whom there is")
    print(f"forgiven: {', '.join(forgiven)}" if forgiven else "nothing is held against any node")
    return 0
