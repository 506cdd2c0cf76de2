"""``hpcelastic clean``: show what old runs take on the filesystem, and remove them on request."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from hpcelastic.api.cleaning import OldRun, old_runs, remove_remains, remove_run
from hpcelastic.api.registry import is_directory
from hpcelastic.cli.json_output import add_json, print_json
from hpcelastic.cli.parser import number_of
from hpcelastic.errors import ConfigError

_RUNS = "runs"
_DAY = 86400.0
_OLDER_THAN = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", nargs="?", default=_RUNS, metavar="DIR", help=f"directory of runs (default: {_RUNS})"
    )
    parser.add_argument(
        "--older-than",
        type=number_of("days", or_zero=True),
        default=_OLDER_THAN,
        metavar="DAYS",
        help=f"days since the last change of a run that may be removed (default: {_OLDER_THAN:g})",
    )
    parser.add_argument("--checkpoints", action="store_true", help="also remove runs that have checkpoints")
    parser.add_argument("--delete", action="store_true", help="remove the runs; without it they are only shown")
    add_json(parser, "an array of JSON objects, one for each run")


def run(args: argparse.Namespace) -> int:
    directory = Path(args.directory)
    if not is_directory(directory):
        raise ConfigError(f"{directory.absolute()}: no such directory; write the directory of your runs")
    age, errors = args.older_than * _DAY, list[OSError]()
    runs = old_runs(directory, age, with_checkpoints=args.checkpoints)
    if args.delete:
        errors = remove_remains(directory)
        runs = [run if run.kept else _remove(run, age, args.checkpoints, errors) for run in runs]
    for error in errors:
        print(f"hpcelastic clean: {error.filename}: cannot be removed: {error.strerror}", file=sys.stderr)
    if args.json:
        print_json(runs)
    else:
        _print(runs, args.delete)
    return 1 if errors else 0


def _remove(run: OldRun, age: float, with_checkpoints: bool, errors: list[OSError]) -> OldRun:
    """Remove a run, and return it with the reason why it is kept, if any. Adds an error to ``errors``."""
    try:
        return remove_run(run, age, with_checkpoints=with_checkpoints)
    except OSError as error:  # for example, it belongs to another user
        errors.append(error)
        return replace(run, kept="it cannot be removed")


def _print(runs: list[OldRun], delete: bool) -> None:
    old = [run for run in runs if not run.kept]
    width = max((len(run.name) for run in runs), default=0)
    for each in runs:
        what = f"kept: {each.kept}" if each.kept else "removed" if delete else "old"
        print(f"{each.name:{width}}  {each.phase:10}  {_age(each)}  {_size([each])}  {what}")
    verb = "removed" if delete else "may be removed; add --delete to remove them"
    print(f"{len(old)} of {len(runs)} runs, with {_size(old)}: {verb}" if old else "no run may be removed")


def _age(run: OldRun) -> str:
    return f"{run.age / _DAY:6.1f} days"


def _size(runs: list[OldRun]) -> str:
    return f"{sum(run.files for run in runs):,} files, {sum(run.bytes for run in runs) / 2**20:,.1f} MiB"
