"""``hpcelastic submit``: submit a job file to SLURM."""

import argparse

from hpcelastic.api.launch import resolve, start
from hpcelastic.api.run import Run
from hpcelastic.cli import sbatch
from hpcelastic.cli.job import add_job, add_resume, exit_status, warning_printer
from hpcelastic.cli.json_output import add_json, print_json_line
from hpcelastic.slurm.submission import remarks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    add_resume(parser)
    what = "wait until the run has ended; the exit status is 0 if it has succeeded, and 4 for a crash loop"
    parser.add_argument("--wait", action="store_true", help=what)
    what = "print the command line and the script without submitting them"
    parser.add_argument("--dry-run", action="store_true", help=what)
    add_json(parser, "a JSON object with name, job and directory; with --wait, another with phase and reason")


def run(args: argparse.Namespace) -> int:
    if args.dry_run:
        return sbatch.run(args, command=True)
    warn = warning_printer("submit")
    config = resolve(args.file, args.overrides, args.profile, warn)
    started = start(config, resume=args.resume)
    for line in remarks(config):
        warn(line)
    job = started.status().jobs[-1]
    if args.json:
        print_json_line({"name": started.name, "job": job, "directory": started.directory})
    else:
        print(f"submitted {started.name} as SLURM job {job}; its directory is {started.directory}")
    if args.wait:
        return _wait(started, args.json)
    if not args.json:
        print(f"hpcelastic status {started.directory}\nhpcelastic logs -f {started.directory}")
    return 0


def _wait(started: Run, json: bool) -> int:
    """Wait until the run has ended, and print its phase."""
    status = started.wait()
    if json:
        print_json_line({"name": status.name, "phase": status.phase, "reason": status.reason})
    else:
        print(f"{status.name} has {status.phase}: {status.reason}")
    return exit_status(status)
