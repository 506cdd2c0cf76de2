"""``hpcelastic submit``: submit a job file to SLURM."""

import argparse

from hpcelastic.api.launch import resolve, start
from hpcelastic.api.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the job file (YAML)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="keys to set otherwise, such as nodes=2..4")
    parser.add_argument("--resume", action="store_true", help="continue a run that has ended, in its directory")
    parser.add_argument("--wait", action="store_true", help="wait for the run's end; the exit status tells how it went")


def run(args: argparse.Namespace) -> int:
    started = start(resolve(args.file, args.overrides), resume=args.resume)
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
