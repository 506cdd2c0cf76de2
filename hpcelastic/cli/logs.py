"""``hpcelastic logs``: print the workers' output, each line with its round and rank."""

import argparse
import re
import sys

from hpcelastic.api.follow import worker_logs
from hpcelastic.api.run import Run
from hpcelastic.cli.find import add_run, find_run
from hpcelastic.cli.json_output import add_json, print_json_line
from hpcelastic.errors import ConfigError

_LINE = re.compile(r"\[(\d+)\.(\d+)\] (.*)", re.DOTALL)
"""A line of a log as `Run.logs` yields it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="print new lines until the run ends")
    parser.add_argument("--rank", type=int, metavar="N", help="print this rank only")
    parser.add_argument("--round", type=int, metavar="N", help="print this round only")
    add_json(parser, "a JSON object for each line")


def run(args: argparse.Namespace) -> int:
    found = find_run(args)
    if not args.follow:
        _check_logs_exist(found, args)
    for line in found.logs(args.rank, round=args.round, follow=args.follow):
        if args.json and (parts := _LINE.match(line)):
            print_json_line({"round": int(parts[1]), "rank": int(parts[2]), "line": parts[3]})
        else:
            print(line, flush=args.follow)
    return 0


def _check_logs_exist(found: Run, args: argparse.Namespace) -> None:
    """Raise ConfigError if the round or rank has no log. Without an error it would look like empty output."""
    logs = worker_logs(found.directory)
    rounds, ranks = {round for _, round, _ in logs}, {rank for _, _, rank in logs}
    for what, asked, there in (("round", args.round, rounds), ("rank", args.rank, ranks)):
        if asked is not None and asked not in there:
            known = f"the logs are of {what}s {min(there)}..{max(there)}" if there else "no log exists so far"
            raise ConfigError(f"{found.name} has no log of {what} {asked}; {known}")
    if not logs:
        print(
            f"{found.name} has no logs so far; if logs.redirect is none, see the output of its agents", file=sys.stderr
        )
