"""Settings of the SLURM request: what is asked of sbatch. Pure: plain values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

TIME = re.compile(r"\d+(:\d{1,2}){0,2}|\d+-\d{1,2}(:\d{1,2}){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
MEMORY = re.compile(r"\d+[KMGT]?", re.IGNORECASE)
GPUS = re.compile(r"([\w.-]+:)?\d+(,([\w.-]+:)?\d+)*")
OPTION = re.compile(r"[a-z][a-z0-9-]*")

# sbatch's long options that have a key of their own: one concept, one name.
OWN_KEY = {
    "partition": "slurm.partition",
    "account": "slurm.account",
    "qos": "slurm.qos",
    "time": "slurm.time",
    "gpus-per-node": "slurm.gpus_per_node",
    "cpus-per-task": "slurm.cpus_per_node",
    "mem": "slurm.memory",
    "constraint": "slurm.constraint",
    "exclude": "slurm.exclude",
    "requeue": "slurm.requeue",
    "no-requeue": "slurm.requeue: false",
    "nodes": "nodes",
    "array": "slurm.shape: pool",
    "ntasks-per-node": "workers.per_node",
    "job-name": "run.name",
}


@dataclass(frozen=True)
class SlurmSettings:
    """What to ask SLURM for. Whatever has no key of its own goes under ``options``, verbatim."""

    shape: Literal["allocation", "pool"] = "allocation"
    """``allocation`` is one job with all nodes; ``pool`` is one job for each node, so that they come and go singly."""

    partition: str | None = None
    """Partition to submit to; SLURM's default where not given."""

    account: str | None = None
    """Account to charge."""

    qos: str | None = None
    """Quality of service."""

    time: str | None = None
    """Time limit: MINUTES, HH:MM:SS or D-HH:MM:SS."""

    gpus_per_node: int | str | None = None
    """GPUs on each node: a number, or TYPE:NUMBER."""

    cpus_per_node: int | None = None
    """CPUs for the agent of each node and all of its workers."""

    memory: str | None = None
    """Memory on each node, such as 64G."""

    constraint: str | None = None
    """Node features to ask for."""

    exclude: str | None = None
    """Nodes to leave out, as a SLURM node list."""

    requeue: bool = True
    """Let SLURM requeue the job after preemption or the loss of the batch node."""

    setup: tuple[str, ...] = ()
    """Shell lines run in the batch script before the agents start, such as ``module load cuda``."""

    options: Mapping[str, str | int | bool] = field(default_factory=dict)
    """Any further sbatch option by its long name, passed on verbatim: ``mail-type: END``; ``true`` for a bare flag."""

    def __post_init__(self) -> None:
        for name, pattern, form in (
            ("time", TIME, "MINUTES, HH:MM:SS or D-HH:MM:SS"),
            ("memory", MEMORY, "a number and a unit, such as 64G"),
            ("gpus_per_node", GPUS, "a number, or TYPE:NUMBER such as a100:4"),
        ):
            value = getattr(self, name)
            if value is not None and not pattern.fullmatch(str(value)):
                raise ValueError(f"slurm.{name} is {value!r}; write {form}")
        if self.cpus_per_node is not None and self.cpus_per_node < 1:
            raise ValueError(f"slurm.cpus_per_node is {self.cpus_per_node}; it must be 1 or more")
        for option in self.options:
            _check_option(option)


def _check_option(name: str) -> None:
    if name in OWN_KEY:
        raise ValueError(f"slurm.options.{name} has a key of its own; write {OWN_KEY[name]}")
    if not OPTION.fullmatch(name):
        fitting = name.lstrip("-").replace("_", "-").lower()
        example = fitting if OPTION.fullmatch(fitting) else "mail-type"
        raise ValueError(f"slurm.options.{name} is no long option of sbatch; write its full name, such as {example}")
