"""Settings of the SLURM request. Pure: plain values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpcelastic.config.container import ContainerSettings
from hpcelastic.config.options import Option, check_options, check_text

TIME = re.compile(r"\d+(:\d{1,2}){0,2}|\d+-\d{1,2}(:\d{1,2}){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
MEMORY = re.compile(r"\d+[KMGT]?", re.IGNORECASE)
GPUS = re.compile(r"([\w.-]+:)?\d+(,([\w.-]+:)?\d+)*")

# Long options of sbatch with a dedicated key: one concept, one name.
DEDICATED_KEYS = {
    "partition": "slurm.partition",
    "account": "slurm.account",
    "qos": "slurm.qos",
    "time": "slurm.time",
    "gpus-per-node": "slurm.gpus_per_node",
    "cpus-per-task": "slurm.cpus_per_node",
    "mem": "slurm.memory",
    "constraint": "slurm.constraint",
    "exclude": "slurm.exclude",
    "segment": "slurm.segment",
    "requeue": "slurm.requeue",
    "no-requeue": "slurm.requeue: false",
    "nodes": "nodes",
    "array": "slurm.shape: pool",
    "ntasks-per-node": "workers.per_node",
    "ntasks": "workers.per_node",
    "job-name": "run.name",
}

# Options of srun that a job must not set, with the reason and what to do instead.
_FAULT_TOLERANCE = "hpcelastic sets it so that the other nodes continue when a node dies; remove it"
_ONE_AGENT_EACH = "hpcelastic runs one agent on each node of the job; remove it"
RESERVED_SRUN_OPTIONS = {
    "no-kill": _FAULT_TOLERANCE,
    "kill-on-bad-exit": _FAULT_TOLERANCE,
    "wait": _FAULT_TOLERANCE,
    "nodes": _ONE_AGENT_EACH,
    "nodelist": _ONE_AGENT_EACH,
    "exclude": _ONE_AGENT_EACH,
    "relative": _ONE_AGENT_EACH,
    "ntasks": _ONE_AGENT_EACH,
    "ntasks-per-node": _ONE_AGENT_EACH,
    "ntasks-per-core": _ONE_AGENT_EACH,
    "ntasks-per-socket": _ONE_AGENT_EACH,
    "ntasks-per-gpu": _ONE_AGENT_EACH,
    "multi-prog": _ONE_AGENT_EACH,
    "pty": "an agent needs no terminal; remove it",
    "input": "an agent reads no input; remove it",
    "output": "the run's directory contains the output of agents; remove it",
    "error": "the run's directory contains the output of agents; remove it",
    "cpus-per-task": "write slurm.cpus_per_node",
}


def minutes(time: str) -> int | None:
    """Return a SLURM time limit in minutes, rounded up as by SLURM; None if there is no limit. Source: sbatch(1)."""
    if time.upper() in ("UNLIMITED", "INFINITE"):
        return None
    days, _, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if days:  # D-H, D-H:M, D-H:M:S
        hours, mins, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, mins, seconds = parts
    else:  # M, M:S
        hours, (mins, seconds) = 0, [*parts, 0][:2]
    return int(days or 0) * 1440 + hours * 60 + mins + (seconds > 0)


def check_time(name: str, time: str) -> None:
    """Raise ValueError if ``time``, the value of ``name``, is not a time limit, or is zero: no limit for SLURM."""
    if not TIME.fullmatch(time):
        raise ValueError(f"{name} is {time!r}; write MINUTES, HH:MM:SS, D-HH:MM:SS or UNLIMITED")
    if minutes(time) == 0:
        raise ValueError(f"{name} is {time!r}; it must be more than 0; write UNLIMITED for no limit, or remove it")


@dataclass(frozen=True)
class SlurmSettings:
    """The SLURM request. Options of sbatch without a dedicated key are set in ``options``, verbatim."""

    shape: Literal["allocation", "pool"] = "allocation"
    """``allocation`` is one job with all nodes. ``pool`` is one job for each node, so that nodes join and leave one by
    one."""

    partition: str | None = None
    """Partition to submit to. By default SLURM's default partition."""

    account: str | None = None
    """Account to charge."""

    qos: str | None = None
    """Quality of service."""

    time: str | None = None
    """Time limit: MINUTES, HH:MM:SS or D-HH:MM:SS."""

    gpus_per_node: int | str | None = None
    """GPUs on each node: a number, or TYPE:NUMBER."""

    cpus_per_node: int | None = None
    """CPUs on each node for the agent and all of its workers. If not set, SLURM allocates one CPU, unless the partition
    or ``options: {exclusive: true}`` allocates more."""

    memory: str | None = None
    """Memory on each node, such as 64G."""

    constraint: str | None = None
    """Required node features."""

    exclude: str | None = None
    """Excluded nodes, as a SLURM node list."""

    segment: int | None = None
    """Nodes of each segment of the allocation. SLURM places each segment within one block, on clusters with
    topology/block. Set it to ``nodes.multiple`` with ``nodes.within: block``."""

    requeue: bool = True
    """Let SLURM requeue the job after a preemption or after the loss of the batch node."""

    max_requeues: int = 100
    """Maximum number of requeues of a job by its own agents."""

    warning: float = 120.0
    """Seconds before the time limit at which ``should_stop()`` reports it; at most a quarter of ``time``."""

    refill: float = 60.0
    """Seconds after which a job of one node replaces a lost node of an allocation; 0 for never."""

    poll: float = 300.0
    """Seconds between two queries of one agent to SLURM for drained nodes."""

    setup: tuple[str, ...] = ()
    """Shell lines in the batch script before the agents start, such as ``module load cuda``."""

    container: ContainerSettings = field(default_factory=ContainerSettings)

    options: Mapping[str, Option] = field(default_factory=dict)
    """Other sbatch options by their long names, passed verbatim: ``mail-type: [END, FAIL]``. ``true`` is a flag without
    a value, ``false`` omits the option."""

    srun_options: Mapping[str, Option] = field(default_factory=dict)
    """Other srun options for the job step that starts the agents: ``cpu-bind: none``, ``mpi: none``."""

    def __post_init__(self) -> None:
        if self.time is not None:
            check_time("slurm.time", self.time)
        for name, pattern, form in (
            ("memory", MEMORY, "a number and a unit, such as 64G"),
            ("gpus_per_node", GPUS, "a number, or TYPE:NUMBER such as a100:4"),
        ):
            value = getattr(self, name)
            if value is not None and not pattern.fullmatch(str(value)):
                raise ValueError(f"slurm.{name} is {value!r}; write {form}")
        if self.cpus_per_node is not None and self.cpus_per_node < 1:
            raise ValueError(f"slurm.cpus_per_node is {self.cpus_per_node}; it must be 1 or more")
        if self.segment is not None and self.segment < 1:
            raise ValueError(f"slurm.segment is {self.segment}; it must be 1 or more")
        if self.segment is not None and self.shape == "pool":
            raise ValueError("slurm.segment is not allowed with slurm.shape: pool, whose jobs have one node; remove it")
        if self.max_requeues < 0:
            raise ValueError(f"slurm.max_requeues is {self.max_requeues}; it must be 0 or more")
        if self.refill < 0:
            raise ValueError(f"slurm.refill is {self.refill}; it must be 0 seconds or more")
        if self.poll < 1:
            raise ValueError(f"slurm.poll is {self.poll}; it must be 1 second or more")
        if self.warning < 1:
            raise ValueError(f"slurm.warning is {self.warning}; it must be 1 second or more")
        for name in ("partition", "account", "qos", "constraint", "exclude"):
            check_text(f"slurm.{name}", getattr(self, name))
        self._check_options()

    @property
    def signal_delay(self) -> int:
        """Seconds before the time limit at which SLURM sends the warning signal."""
        limit = minutes(self.time) if self.time else None
        return max(1, int(self.warning if limit is None else min(self.warning, limit * 60 / 4)))

    def _check_options(self) -> None:
        for name in self.options:
            if name in DEDICATED_KEYS:
                raise ValueError(f"slurm.options.{name} has a dedicated key; write {DEDICATED_KEYS[name]}")
            if name == "clusters":
                raise ValueError(
                    "slurm.options.clusters is not supported: the commands and agents of a run ask the cluster that "
                    "they run on; log in there, and submit without it"
                )
            if name == "no-kill":
                raise ValueError("slurm.options.no-kill is not allowed: hpcelastic sets it for slurm.shape; remove it")
        for name in self.srun_options:
            if name in RESERVED_SRUN_OPTIONS:
                raise ValueError(f"slurm.srun_options.{name} is not allowed: {RESERVED_SRUN_OPTIONS[name]}")
            if name.startswith(("container-", "no-container-")):
                raise ValueError(
                    f"slurm.srun_options.{name} is an option of containers; write it under slurm.container"
                )
        check_options("slurm.options", self.options, "sbatch")
        check_options("slurm.srun_options", self.srun_options, "srun")
