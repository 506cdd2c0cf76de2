"""``hpcelastic sbatch``: print the batch script that ``hpcelastic submit`` would submit; submits nothing."""

import argparse
from pathlib import Path

from hpcelastic.api.checks import check_entrypoint
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import run_paths
from hpcelastic.cli.job import add_job
from hpcelastic.slurm.submission import sbatch_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)


def run(args: argparse.Namespace) -> int:
    config = resolve(args.file, args.overrides)
    check_entrypoint(config.entrypoint, Path.cwd())
    print(sbatch_text(config, run_paths(config)), end="")
    return 0
