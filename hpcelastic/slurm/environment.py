"""The environment variables that SLURM sets for a task, parsed once.

Source: srun(1), OUTPUT ENVIRONMENT VARIABLES.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hpcelastic.agent.member import NodeIdentity

_BATCH_STEPS = ("-5", "4294967291")
"""Ids of the step of a batch script. Newer versions of SLURM set it: 26.05 does, 22.05 does not. Source:
SLURM_BATCH_SCRIPT in slurm.h."""

_NUMBER_DEFAULTS = {"SLURM_NODEID": 0, "SLURM_NNODES": 1, "SLURM_RESTART_COUNT": 0}


@dataclass(frozen=True)
class SlurmTask:
    """A task of a SLURM job step."""

    job_id: str
    node: str
    node_id: int
    nodes: int
    restart: int
    """How often the job was requeued."""

    launcher: str = ""
    """Address of the node on which srun runs. It could connect to this node. Empty if SLURM does not set it."""

    array_job: str = ""
    """Id of the array that contains the job; empty if the job belongs to no array."""

    array_task: int | None = None
    """Index of the job in the array."""

    topology: str = ""
    """The switches above the node, ``TOP.LEAF``, or its block; empty if the site has not configured a topology."""

    start: float | None = None
    """The time at which the job was started, in seconds since the epoch; None if SLURM does not set it."""

    @property
    def name(self) -> str:
        """The job's name in SLURM's commands. An element's own id may also be the id of its whole array."""
        return self.job_id if self.array_task is None else f"{self.array_job}_{self.array_task}"


def slurm_task(environ: Mapping[str, str]) -> SlurmTask | None:
    """Return the SLURM task of this process; None outside of a job step."""
    if not environ.get("SLURMD_NODENAME") or not _in_step(environ):
        return None
    node_id, nodes, restart = (_number(environ, name, default) for name, default in _NUMBER_DEFAULTS.items())
    array = environ.get("SLURM_ARRAY_JOB_ID", "")
    return SlurmTask(
        environ["SLURM_JOB_ID"],
        environ["SLURMD_NODENAME"],
        node_id,
        nodes,
        restart,
        launcher=environ.get("SLURM_LAUNCH_NODE_IPADDR", ""),
        array_job=array,
        array_task=_number(environ, "SLURM_ARRAY_TASK_ID", 0) if array else None,
        topology=_topology(environ),
        start=float(_number(environ, "SLURM_JOB_START_TIME", 0)) or None,
    )


def _topology(environ: Mapping[str, str]) -> str:
    """Return the address without its last part, the node.

    Examples are ``top.leaf.n1`` with the pattern ``switch.switch.node``, and ``b8.n1`` with ``block.node``.
    """
    address, pattern = environ.get("SLURM_TOPOLOGY_ADDR", ""), environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")
    *above, last = pattern.split(".")
    names = address.split(".", len(above))  # a node's name may contain dots
    return ".".join(names[:-1]) if last == "node" and len(names) == len(above) + 1 else ""


def outside_of_steps(environ: Mapping[str, str]) -> bool:
    """Return whether this process is in a SLURM job but in none of its steps, as in a batch script or in salloc."""
    return bool(environ.get("SLURM_JOB_ID")) and not _in_step(environ)


def _in_step(environ: Mapping[str, str]) -> bool:
    """Return whether srun has started this process or one of its ancestors."""
    return bool(environ.get("SLURM_JOB_ID")) and environ.get("SLURM_STEP_ID", _BATCH_STEPS[0]) not in _BATCH_STEPS


@dataclass(frozen=True)
class StepRank:
    """The rank of a process among the tasks of a SLURM job step."""

    step: str
    """Job, restart and step, which are unique to the step."""

    rank: int
    tasks: int


def step_rank(environ: Mapping[str, str]) -> StepRank | None:
    """Return the rank of this process among the tasks of its step; None outside of a job step."""
    task = slurm_task(environ)
    if task is None:
        return None
    rank, tasks = _number(environ, "SLURM_PROCID", 0), _number(environ, "SLURM_STEP_NUM_TASKS", 1)
    return StepRank(f"{task.job_id}.{task.restart}.{environ['SLURM_STEP_ID']}", rank, tasks)


def identity_of(task: SlurmTask) -> NodeIdentity:
    """Return the identity of the node of ``task``.

    It has the number of nodes of the job's step, from which the number of agents that will join is known. An element of
    an array has no such number: the elements start one by one, and a node may have several of them.
    """
    identity = NodeIdentity(
        task.node,
        job=task.job_id,
        job_nodes=task.nodes,
        restart=task.restart,
        order=task.node_id,
        launcher=task.launcher,
        topology=task.topology,
    )
    if task.array_task is None:
        return identity
    name = f"{task.node}_{task.array_task}"
    return replace(identity, name=name, host=task.node, job_nodes=0, order=task.array_task)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(environ.get(name, default))
    except ValueError:
        return default
