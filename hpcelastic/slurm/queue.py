"""What SLURM's queue says of a run, and what follows from it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpcelastic.agent.surroundings import Outlook

_ON = ("RUNNING", "CONFIGURING", "SUSPENDED")


@dataclass(frozen=True)
class QueuedJob:
    """A job, or an element of an array, as squeue lists it."""

    id: str
    array: str
    """The array's id, the job's own if it is of none."""

    state: str
    nodes: int
    restarts: int
    reason: str


def outlook(queue: Iterable[QueuedJob], agents: Mapping[str, int]) -> Outlook:
    """What the ``queue`` of a run's jobs means, so many ``agents`` having been seen of each ``JOB.RESTART``."""
    coming = pending = 0
    for job in queue:
        if job.state in _ON:
            coming += max(0, job.nodes - agents.get(f"{job.id}.{job.restarts}", 0))
        elif job.state in ("PENDING", "REQUEUED"):
            pending += job.nodes
    return Outlook(coming, pending)


def held_back(queue: Iterable[QueuedJob]) -> frozenset[str]:
    """Requeued jobs that could start but for the wait that SLURM lays on them."""
    return frozenset(
        job.id for job in queue if job.state == "PENDING" and job.restarts > 0 and job.reason == "BeginTime"
    )
