"""The first files of a project: a job file and a batch script for this cluster, and a training script.

The files are templates of this package. Their values come from the partitions that SLURM describes.
"""

import re
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from hpcelastic.config.display import flow_style
from hpcelastic.config.slurm import minutes
from hpcelastic.errors import ConfigError
from hpcelastic.slurm.partitions import Partition

_FIELD = re.compile(r"\{\{(\w+)\}\}")

_MAX_MINUTES = 30
"""The time limit of a first job. Short jobs start early."""

_CPUS = 2
"""Processors that a job requests on each node without GPUs."""


def choose_partition(partitions: Sequence[Partition], name: str) -> Partition | None:
    """Return the partition ``name``; without a name, the one to begin with. Return None if there is no partition.

    The default partition is preferred, and before it one with GPUs. Raises ConfigError if there is none of that name.
    """
    if name:
        found = next((partition for partition in partitions if partition.name == name), None)
        if found is None:
            known = ", ".join(partition.name for partition in partitions) or "none"
            raise ConfigError(f"--partition is {name}, which accepts no jobs; SLURM has: {known}")
        return found
    return max(partitions, key=lambda each: (each.gpus > 0, each.default, each.nodes), default=None)


def starter_files(partitions: Sequence[Partition], chosen: Partition | None, script: str) -> dict[str, str]:
    """Return the text of the job file and of the batch script, by their names."""
    values = _values(partitions, chosen) | {"directory": "runs"}
    values |= {"yaml_script": flow_style(script), "shell_script": shlex.quote(script)}
    return {name: _FIELD.sub(lambda field: values[field[1]], template(name)) for name in ("job.yaml", "job.sbatch")}


def template(name: str) -> str:
    return (resources.files("hpcelastic") / "templates" / f"{name}.txt").read_text(encoding="utf-8")


def write_files(directory: Path, texts: dict[str, str], *, force: bool) -> None:
    """Write the files. Raises ConfigError before anything is written if one exists, unless ``force``."""
    existing = [name for name in texts if (directory / name).exists()]
    if existing and not force:
        raise ConfigError(f"{directory / existing[0]} exists; remove it, name another directory, or add --force")
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")


def _values(partitions: Sequence[Partition], chosen: Partition | None) -> dict[str, str]:
    name = "" if chosen is None else chosen.name
    if chosen is None:
        chosen = Partition(name, nodes=2, cpus=_CPUS, memory=0, gpus=0, time="")
        lines = ["SLURM could not be asked for its partitions; see sinfo."]
    else:
        lines = ["Partitions of this cluster:", *(f"  {_described(each)}" for each in partitions)]
    several = chosen.nodes > 1
    cpus = chosen.cpus if chosen.gpus else min(_CPUS, max(1, chosen.cpus))
    gpus = f"gpus_per_node: {chosen.gpus}" if chosen.gpus else "# gpus_per_node: 8"
    return {
        "nodes": "1..2" if several else "1",
        "nnodes": "1:2" if several else "1",
        "sbatch_nodes": "1-2" if several else "1",
        "partitions": "\n".join(f"  # {line}" for line in lines),
        "partition": f"partition: {name}" if name else "# partition: gpu",
        "sbatch_partition": f"#SBATCH --partition={name}" if name else "##SBATCH --partition=gpu",
        "time": _time(chosen.time),
        "cpus": str(cpus),
        "gpus": gpus,
        "sbatch_gpus": f"#SBATCH --gpus-per-node={chosen.gpus}" if chosen.gpus else "##SBATCH --gpus-per-node=8",
        "memory": f"{max(1, chosen.memory * 9 // 10 >> 10)}G" if chosen.memory else "64G",
    }


def _described(partition: Partition) -> str:
    gpus = f", {partition.gpus} GPUs" if partition.gpus else ""
    nodes = f"{partition.nodes} node{'s' if partition.nodes > 1 else ''}"
    memory = f", {partition.memory >> 10} GiB" if partition.memory >> 10 else ""
    default = " (default)" if partition.default else ""
    return f"{partition.name}{default}: {nodes} with {partition.cpus} processors{memory}{gpus}; limit {partition.time}"


def _time(limit: str) -> str:
    """Return a time limit that the partition allows."""
    try:
        most = minutes(limit.upper())
    except ValueError:
        most = None
    return str(_MAX_MINUTES if most is None else min(_MAX_MINUTES, most))
