"""``hpcelastic init``: write a job file, a batch script and a training script to start from."""

import argparse
import os
import sys
from pathlib import Path

from hpcelastic.api.starter import choose_partition, starter_files, template, write_files
from hpcelastic.errors import ConfigError, SlurmError
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.partitions import Partition

_SCRIPT = "train.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", nargs="?", default=".", help="where to write (default: here)")
    parser.add_argument(
        "--partition", metavar="NAME", default="", help="the partition (default: one with GPUs, if any)"
    )
    what = f"the training script, in DIR (default: {_SCRIPT}, which is written if it does not exist)"
    parser.add_argument("--script", metavar="FILE", default=_SCRIPT, help=what)
    parser.add_argument("--force", action="store_true", help="overwrite job.yaml and job.sbatch")


def run(args: argparse.Namespace) -> int:
    directory = Path(args.directory)
    exists = Path(os.path.normpath(directory / args.script)).is_file()  # the directory may not exist yet
    if not exists and args.script != _SCRIPT:
        raise ConfigError(f"--script: {directory / args.script}: no such file; its path is relative to {directory}")
    partitions = _partitions(args.partition)
    chosen = choose_partition(partitions, args.partition)
    texts = starter_files(partitions, chosen, args.script)
    if not exists:
        texts[_SCRIPT] = template(_SCRIPT)
    write_files(directory, texts, force=args.force)
    print(f"wrote {', '.join(str(directory / name) for name in texts)}")
    if chosen is not None:
        gpus = f", with {chosen.gpus} GPUs on each node" if chosen.gpus else ""
        print(f"partition: {chosen.name}{gpus}; the others are listed in {directory / 'job.yaml'}")
    enter = "" if directory == Path() else f"cd {directory}; "
    trial = "hpcelastic run job.yaml run.name=trial --nodes 2   # on this machine"
    print(f"next:\n  {enter}{trial}\n  {enter}hpcelastic submit job.yaml")
    return 0


def _partitions(name: str) -> list[Partition]:
    """Return the partitions of the cluster; none without SLURM, which is an error if a partition is named."""
    try:
        return scheduler.partitions()
    except SlurmError as error:
        if name:
            raise
        print(f"hpcelastic init: the job file is not adapted to a cluster: {error}", file=sys.stderr)
        return []
