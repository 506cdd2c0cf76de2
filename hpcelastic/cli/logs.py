"""``hpcelastic logs``: show the workers' output, each line with its round and rank."""

import argparse

from hpcelastic.cli.find import add_run, find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--rank", type=int, metavar="N", help="this rank only")
    parser.add_argument("--round", type=int, metavar="N", help="this round only")


def run(args: argparse.Namespace) -> int:
    for line in find_run(args).logs(args.rank, round=args.round, follow=args.follow):
        print(line, flush=args.follow)
    return 0
