"""``hpcelastic submit``: submit a job file to SLURM."""

import argparse
import sys

from hpcelastic.api.launch import resolve, start
from hpcelastic.api.run import Run
from hpcelastic.cli import sbatch
from hpcelastic.cli.job import add_job, add_resume
from hpcelastic.slurm.submission import remarks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    add_resume(parser)
    parser.add_argument("--wait", action="store_true", help="wait for the run's end; the exit status tells how it went")
    what = "print what would be submitted, the command line and the script, and do nothing"
    parser.add_argument("--dry-run", action="store_true", help=what)


def run(args: argparse.Namespace) -> int:
    if args.dry_run:
        return sbatch.run(args, command=True)
    config = resolve(args.file, args.overrides, args.profile)
    started = start(config, resume=args.resume)
    for line in remarks(config):
        print(f"hpcelastic submit: {line}", file=sys.stderr)
    print(f"submitted {started.name} as SLURM job {started.status().jobs[-1]}; its directory is {started.directory}")
    if args.wait:
        return wait(started)
    print(f"hpcelastic status {started.directory}\nhpcelastic logs -f {started.directory}")
    return 0


def wait(started: Run) -> int:
    """Wait for the run's end and say how it went."""
    status = started.wait()
    print(f"{status.name} has {status.phase}: {status.reason}")
    return 0 if status.phase == "succeeded" else 1
