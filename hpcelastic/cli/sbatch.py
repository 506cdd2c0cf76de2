"""``hpcelastic sbatch``: print the batch script that ``hpcelastic submit`` would submit; submits nothing."""

import argparse
import shlex
import sys
from pathlib import Path

from hpcelastic.api.checks import check_job
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import run_paths
from hpcelastic.cli.job import add_job
from hpcelastic.slurm.submission import remarks, sbatch_command, sbatch_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)


def run(args: argparse.Namespace, *, command: bool = False) -> int:
    """Print the script; with ``command``, before it and an empty line, the command line that hands it over."""
    config = resolve(args.file, args.overrides, args.profile)
    check_job(config, Path.cwd())
    paths = run_paths(config)
    for line in remarks(config):
        print(f"hpcelastic {'submit' if command else 'sbatch'}: {line}", file=sys.stderr)
    if command:
        print(shlex.join(sbatch_command(config, paths)), end="\n\n")
    print(sbatch_text(config, paths), end="")
    return 0
