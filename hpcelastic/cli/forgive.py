"""``hpcelastic forgive``: ignore the recorded incidents of nodes from now on."""

import argparse

from hpcelastic.cli.find import add_run, find_run
from hpcelastic.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="nodes to allow again")
    parser.add_argument("--all", action="store_true", help="allow all nodes again")


def run(args: argparse.Namespace) -> int:
    if bool(args.nodes) == args.all:
        raise ConfigError("write the nodes to forgive, or --all, but not both; hpcelastic status shows the nodes")
    forgiven = find_run(args).forgive(*args.nodes)
    if unknown := sorted(set(args.nodes) - set(forgiven)):
        raise ConfigError(
            f"{', '.join(unknown)}: no incident is recorded; hpcelastic status shows the nodes with incidents"
        )
    print(f"forgiven: {', '.join(forgiven)}" if forgiven else "no incident is recorded for any node")
    return 0
