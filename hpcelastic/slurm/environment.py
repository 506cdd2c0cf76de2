"""What SLURM tells a task in its environment, parsed once.

Source: srun(1), OUTPUT ENVIRONMENT VARIABLES.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hpcelastic.agent.node import Place

_BATCH_STEPS = ("-5", "4294967291")
"""Ids of the step that a batch script counts as. Newer versions of SLURM set it: 26.05 does, 22.05 does not. Source:
SLURM_BATCH_SCRIPT in slurm.h."""

_NUMBERS = {"SLURM_NODEID": 0, "SLURM_NNODES": 1, "SLURM_RESTART_COUNT": 0}


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
    """Address of the node that srun runs on, which has reached this one; empty if it is not told."""

    array_job: str = ""
    """Id of the array that the job is an element of; empty if of none."""

    array_task: int | None = None
    """Which element of it."""

    topology: str = ""
    """The switches above the node, ``TOP.LEAF``, or its block; empty if the site has not told SLURM of any."""

    @property
    def name(self) -> str:
        """What SLURM's commands are to be told: one element's own id may be its array's too, and mean all of them."""
        return self.job_id if self.array_task is None else f"{self.array_job}_{self.array_task}"


def slurm_task(environ: Mapping[str, str]) -> SlurmTask | None:
    """The SLURM task that this process is; None outside of a job step."""
    if not environ.get("SLURMD_NODENAME") or not _in_a_step(environ):
        return None
    node_id, nodes, restart = (_number(environ, name, default) for name, default in _NUMBERS.items())
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
    )


def _topology(environ: Mapping[str, str]) -> str:
    """What is above the node: ``top.leaf.n1``, of pattern ``switch.switch.node``, or ``b8.n1``, of ``block.node``."""
    address, pattern = environ.get("SLURM_TOPOLOGY_ADDR", ""), environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")
    *above, last = pattern.split(".")
    names = address.split(".", len(above))  # a node's name may have dots
    return ".".join(names[:-1]) if last == "node" and len(names) == len(above) + 1 else ""


def beside_the_steps(environ: Mapping[str, str]) -> bool:
    """Whether this process belongs to a SLURM job and to none of its steps: that of a batch script or of salloc."""
    return bool(environ.get("SLURM_JOB_ID")) and not _in_a_step(environ)


def _in_a_step(environ: Mapping[str, str]) -> bool:
    """Whether srun has started this process, or a process that it descends from."""
    return bool(environ.get("SLURM_JOB_ID")) and environ.get("SLURM_STEP_ID", _BATCH_STEPS[0]) not in _BATCH_STEPS


@dataclass(frozen=True)
class StepRank:
    """Which task of a SLURM job step a process is."""

    step: str
    """Job, restart and step: no other step ever has the same."""

    rank: int
    tasks: int


def step_rank(environ: Mapping[str, str]) -> StepRank | None:
    """The place of this process among the tasks of its step; None outside of a job step."""
    task = slurm_task(environ)
    if task is None:
        return None
    rank, tasks = _number(environ, "SLURM_PROCID", 0), _number(environ, "SLURM_STEP_NUM_TASKS", 1)
    return StepRank(f"{task.job_id}.{task.restart}.{environ['SLURM_STEP_ID']}", rank, tasks)


def place_of(task: SlurmTask) -> Place:
    """Where the agent of ``task`` runs. Nodes are counted for the job's step: who else comes is known from it.

    Not so in an array: its elements start one by one, and there may be several on one node.
    """
    place = Place(
        task.node,
        job=task.job_id,
        job_nodes=task.nodes,
        restart=task.restart,
        order=task.node_id,
        launcher=task.launcher,
        topology=task.topology,
    )
    if task.array_task is None:
        return place
    name = f"{task.node}_{task.array_task}"
    return replace(place, name=name, host=task.node, job_nodes=0, order=task.array_task)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(environ.get(name, default))
    except ValueError:
        return default
