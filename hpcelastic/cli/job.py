"""The arguments that describe a job: a file, and keys to override."""

import argparse
import sys
from collections.abc import Callable

from hpcelastic.api.status import RunStatus
from hpcelastic.errors import CrashLoop
from hpcelastic.protocol.state import Phase


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that describe a job."""
    parser.add_argument("file", metavar="FILE", help="the job file (YAML)")
    what = "profile in the user's configuration file, or none (default: selected by the name of the cluster)"
    parser.add_argument("--profile", metavar="NAME", help=what)
    what = "keys of the job file to override, such as nodes=2..4"
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=what)


def add_resume(parser: argparse.ArgumentParser) -> None:
    """Add the flag that continues a run that has ended."""
    parser.add_argument("--resume", action="store_true", help="continue a run that has ended, in its directory")


def exit_status(status: RunStatus) -> int:
    """Return the exit status of a command that has waited for the end of a run."""
    if status.crash_loop:
        return CrashLoop.exit_code
    return 0 if status.phase == Phase.SUCCEEDED.value else 1


def warning_printer(command: str) -> Callable[[str], None]:
    """Return a function that prints a warning of ``command`` to stderr."""
    return lambda line: print(f"hpcelastic {command}: {line}", file=sys.stderr)
