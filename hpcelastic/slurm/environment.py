"""What SLURM tells a task in its environment, parsed once.

Source: srun(1), OUTPUT ENVIRONMENT VARIABLES.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hpcelastic.agent.node import Place

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


def slurm_task(environ: Mapping[str, str]) -> SlurmTask | None:
    """The SLURM task that this process is; None outside of a job step."""
    if not environ.get("SLURM_JOB_ID") or not environ.get("SLURMD_NODENAME") or "SLURM_STEP_ID" not in environ:
        return None
    node_id, nodes, restart = (_number(environ, name, default) for name, default in _NUMBERS.items())
    return SlurmTask(environ["SLURM_JOB_ID"], environ["SLURMD_NODENAME"], node_id, nodes, restart)


def place_of(task: SlurmTask) -> Place:
    """Where the agent of ``task`` runs. Nodes are counted for the job's step: who else comes is known from it."""
    return Place(task.node, job=task.job_id, job_nodes=task.nodes, restart=task.restart, order=task.node_id)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(environ.get(name, default))
    except ValueError:
        return default
