"""``hpcelastic logs``: show the workers' output, each line with its round and rank."""

import argparse
import sys

from hpcelastic.api.follow import worker_logs
from hpcelastic.api.run import Run
from hpcelastic.cli.find import add_run, find_run
from hpcelastic.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--rank", type=int, metavar="N", help="this rank only")
    parser.add_argument("--round", type=int, metavar="N", help="this round only")


def run(args: argparse.Namespace) -> int:
    found = find_run(args)
    if not args.follow:
        _check_there(found, args)
    for line in found.logs(args.rank, round=args.round, follow=args.follow):
        print(line, flush=args.follow)
    return 0


def _check_there(found: Run, args: argparse.Namespace) -> None:
    """ConfigError if what is asked for has no log, which would look as if it had said nothing."""
    logs = worker_logs(found.directory)
    rounds, ranks = {round for _, round, _ in logs}, {rank for _, _, rank in logs}
    for what, asked, there in (("round", args.round, rounds), ("rank", args.rank, ranks)):
        if asked is not None and asked not in there:
            known = f"there are {min(there)}..{max(there)}" if there else "there is no log at all so far"
            raise ConfigError(f"{found.name} has no log of {what} {asked}; {known}")
    if not logs:
        print(
            f"{found.name} has no logs so far; with logs.redirect: none, see the output of its agents", file=sys.stderr
        )
