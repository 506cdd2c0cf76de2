"""The partitions of a cluster, as SLURM describes them. Pure. Source: sinfo(1)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

FORMAT = "%P|%a|%D|%c|%m|%l|%G"
"""The format of sinfo: partition, availability, nodes, processors, memory in MiB, time limit, generic resources."""

_NUMBER = re.compile(r"\d+")
_GPUS = re.compile(r"\bgpu(?::[^:,()]+)?:(\d+)")


@dataclass(frozen=True)
class Partition:
    """A partition. Values of a node are those of most of its nodes."""

    name: str
    nodes: int
    cpus: int
    memory: int
    """MiB of a node."""

    gpus: int
    """GPUs of a node."""

    time: str
    """The time limit of a job, as sbatch accepts it."""

    default: bool = False
    """Whether SLURM uses it for jobs that name none."""


def parse_partitions(lines: Iterable[str]) -> list[Partition]:
    """Return the partitions in the output of ``sinfo --noheader --format=FORMAT`` that accept jobs.

    SLURM prints a line for each kind of nodes of a partition. A line of another form is ignored.
    """
    found: dict[str, list[Partition]] = {}
    for line in lines:
        fields = [field.strip() for field in line.split("|", 6)]
        if len(fields) == 7 and fields[1] == "up":
            name, _, nodes, cpus, memory, time, resources = fields
            gpus = sum(int(count) for count in _GPUS.findall(resources))
            one = Partition(
                name.rstrip("*"), _first(nodes), _first(cpus), _first(memory), gpus, time, name.endswith("*")
            )
            found.setdefault(one.name, []).append(one)
    return [
        replace(max(kinds, key=lambda kind: kind.nodes), nodes=sum(kind.nodes for kind in kinds))
        for kinds in found.values()
    ]


def _first(text: str) -> int:
    """Return the first number in a text such as ``64+``; 0 if there is none."""
    number = _NUMBER.search(text)
    return int(number.group()) if number else 0
