"""How commands name a run: by its directory, by its name in ``./runs`` or a directory given with
``--in``, or by the name of one that was started from anywhere."""

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
    """The run that the arguments name; ConfigError if there is none such."""
    runs = Path(args.directory)
    if args.name is None:
        found = find_runs(runs)
        if not found:
            raise ConfigError(f"{runs.absolute()}: holds no run; name the run's directory, or --in DIR")
        return max(found, key=lambda run: run.directory.stat().st_ctime)
    return Run.open(args.name, runs=runs)
