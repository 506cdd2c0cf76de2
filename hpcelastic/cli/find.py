"""How commands name a run: by its directory, or by its name in ``./runs`` or a directory given with ``--in``."""

import argparse
from pathlib import Path

from hpcelastic.api.run import Run, find_runs
from hpcelastic.errors import ConfigError


def add_run(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """The argument that names a run."""
    what = "name or directory of the run" + ("; the newest if not given" if optional else "")
    parser.add_argument("name", metavar="RUN", nargs="?" if optional else None, help=what)
    parser.add_argument(
        "--in", dest="directory", default="runs", metavar="DIR", help="where runs are kept (%(default)s)"
    )


def find_run(args: argparse.Namespace) -> Run:
    """The run that the arguments name; ConfigError with those there are if there is none such."""
    runs = Path(args.directory)
    if args.name is None:
        found = find_runs(runs)
        if not found:
            raise ConfigError(f"{runs.absolute()}: holds no run; name the run's directory, or --in DIR")
        return max(found, key=lambda run: run.directory.stat().st_ctime)
    for directory in (Path(args.name), runs / args.name):
        if (directory / "rendezvous").is_dir():
            return Run(directory)
    names = [run.name for run in find_runs(runs)] if runs.is_dir() else []
    known = f"; there are {', '.join(names)}" if names else ""
    remedy = known or "; is the filesystem that holds it mounted here?"
    raise ConfigError(f"{args.name}: no such run, neither as a directory nor in {runs.absolute()}{remedy}")
