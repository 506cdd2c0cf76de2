"""Settings of the SLURM request: what is asked of sbatch. Pure: plain values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpcelastic.config.container import ContainerSettings
from hpcelastic.config.options import Option, check_options, check_text

TIME = re.compile(r"\d+(:\d{1,2}){0,2}|\d+-\d{1,2}(:\d{1,2}){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
MEMORY = re.compile(r"\d+[KMGT]?", re.IGNORECASE)
GPUS = re.compile(r"([\w.-]+:)?\d+(,([\w.-]+:)?\d+)*")

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
    "ntasks": "workers.per_node",
    "job-name": "run.name",
}

# srun's options that are not for a job to set, with what they would do, or what to write instead.
_SURVIVAL = "it keeps the others alive when a node dies"
_ONE_EACH = "one agent runs on each node of the job"
OF_THE_STEP = {
    "no-kill": _SURVIVAL,
    "kill-on-bad-exit": _SURVIVAL,
    "wait": _SURVIVAL,
    "nodes": _ONE_EACH,
    "nodelist": _ONE_EACH,
    "exclude": _ONE_EACH,
    "relative": _ONE_EACH,
    "ntasks": _ONE_EACH,
    "ntasks-per-node": _ONE_EACH,
    "ntasks-per-core": _ONE_EACH,
    "ntasks-per-socket": _ONE_EACH,
    "ntasks-per-gpu": _ONE_EACH,
    "multi-prog": _ONE_EACH,
    "pty": "an agent needs no terminal",
    "input": "an agent reads nothing",
    "output": "the run's directory has what agents say",
    "error": "the run's directory has what agents say",
    "cpus-per-task": "write slurm.cpus_per_node",
}


def minutes(time: str) -> int | None:
    """SLURM's time limit in minutes, rounded up as SLURM does; None where there is no limit. Source: sbatch(1)."""
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
    """CPUs for the agent of each node and all of its workers. Where not given, SLURM gives one, unless its partition or
    ``options: {exclusive: true}`` gives more."""

    memory: str | None = None
    """Memory on each node, such as 64G."""

    constraint: str | None = None
    """Node features to ask for."""

    exclude: str | None = None
    """Nodes to leave out, as a SLURM node list."""

    requeue: bool = True
    """Let SLURM requeue the job after preemption or the loss of the batch node."""

    max_requeues: int = 100
    """How often a job may be requeued by its own agents."""

    warning: float = 120.0
    """Seconds before the time limit at which workers hear of it through ``should_stop()``; no more than a quarter of
    ``time``."""

    refill: float = 60.0
    """Seconds after which a node that an allocation has lost is replaced by a job of one node; 0 for never."""

    poll: float = 300.0
    """How often one agent of the run asks SLURM whether nodes are drained."""

    setup: tuple[str, ...] = ()
    """Shell lines run in the batch script before the agents start, such as ``module load cuda``."""

    container: ContainerSettings = field(default_factory=ContainerSettings)

    options: Mapping[str, Option] = field(default_factory=dict)
    """Any further sbatch option by its long name, passed on verbatim: ``mail-type: [END, FAIL]``; ``true`` for a bare
    flag, ``false`` for none."""

    srun_options: Mapping[str, Option] = field(default_factory=dict)
    """The same for the job step that starts the agents: ``cpu-bind: none``, ``mpi: none``."""

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
        """Seconds before the time limit at which SLURM is asked for its warning."""
        limit = minutes(self.time) if self.time else None
        return max(1, int(self.warning if limit is None else min(self.warning, limit * 60 / 4)))

    def _check_options(self) -> None:
        for name in self.options:
            if name in OWN_KEY:
                raise ValueError(f"slurm.options.{name} has a key of its own; write {OWN_KEY[name]}")
            if name == "no-kill":
                raise ValueError("slurm.options.no-kill is set as slurm.shape needs it; leave it out")
        for name in self.srun_options:
            if name in OF_THE_STEP:
                raise ValueError(f"slurm.srun_options.{name} is not to be set: {OF_THE_STEP[name]}")
            if name.startswith(("container-", "no-container-")):
                raise ValueError(f"slurm.srun_options.{name} is of a container; write it under slurm.container")
        check_options("slurm.options", self.options, "sbatch")
        check_options("slurm.srun_options", self.srun_options, "srun")
