"""``hpcelastic submit``: submit a job file to SLURM."""

import argparse

from hpcelastic.api.launch import resolve, start
from hpcelastic.api.run import Run
from hpcelastic.cli import sbatch
from hpcelastic.cli.job import add_job, add_resume, warning_printer
from hpcelastic.slurm.submission import remarks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    add_resume(parser)
    parser.add_argument(
        "--wait", action="store_true", help="wait until the run has ended; the exit status is 0 if it has succeeded"
    )
    what = "print the command line and the script without submitting them"
    parser.add_argument("--dry-run", action="store_true", help=what)


def run(args: argparse.Namespace) -> int:
    if args.dry_run:
        return sbatch.run(args, command=True)
    warn = warning_printer("submit")
    config = resolve(args.file, args.overrides, args.profile, warn)
    started = start(config, resume=args.resume)
    for line in remarks(config):
        warn(line)
    print(f"submitted {started.name} as SLURM job {started.status().jobs[-1]}; its directory is {started.directory}")
    if args.wait:
        return wait(started)
    print(f"hpcelastic status {started.directory}\nhpcelastic logs -f {started.directory}")
    return 0


def wait(started: Run) -> int:
    """Wait until the run has ended, and print its phase."""
    status = started.wait()
    print(f"{status.name} has {status.phase}: {status.reason}")
    return 0 if status.phase == "succeeded" else 1
