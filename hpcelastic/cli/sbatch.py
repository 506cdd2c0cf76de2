"""``hpcelastic sbatch``: print the batch script of ``hpcelastic submit`` without submitting it."""

import argparse
import shlex
from pathlib import Path

from hpcelastic.api.checks import check_job
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import run_paths
from hpcelastic.cli.job import add_job, warning_printer
from hpcelastic.slurm.submission import remarks, sbatch_command, sbatch_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)


def run(args: argparse.Namespace, *, command: bool = False) -> int:
    """Print the script. With ``command``, first print the command line that submits it, and an empty line."""
    warn = warning_printer("submit" if command else "sbatch")
    config = resolve(args.file, args.overrides, args.profile, warn)
    check_job(config, Path.cwd())
    paths = run_paths(config)
    for line in remarks(config):
        warn(line)
    if command:
        print(shlex.join(sbatch_command(config, paths)), end="\n\n")
    print(sbatch_text(config, paths), end="")
    return 0
