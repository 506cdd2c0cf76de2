"""``hpcelastic cancel``: end a run permanently, and cancel its SLURM jobs."""

import argparse

from hpcelastic.cli.find import add_run, find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)


def run(args: argparse.Namespace) -> int:
    status = find_run(args).cancel()
    print(f"{status.name} has {status.phase}: {status.reason}")
    return 0
