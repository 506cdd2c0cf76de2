"""What SLURM's queue says of a run, and what follows from it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpcelastic.agent.surroundings import Outlook

_ON = ("RUNNING", "CONFIGURING", "SUSPENDED")
_TO_COME = ("PENDING", "REQUEUED")


@dataclass(frozen=True)
class QueuedJob:
    """A job, or an element of an array, as squeue lists it."""

    id: str
    array: str
    """The array's id, the job's own if it is of none."""

    task: str
    """Which element of the array; empty if of none."""

    state: str
    nodes: int
    restarts: int
    reason: str

    @property
    def element(self) -> str:
        """By which it alone is cancelled: elements that wait may all have one id."""
        return f"{self.array}_{self.task}" if self.task else self.id


def outlook(queue: Iterable[QueuedJob], agents: Mapping[str, int]) -> Outlook:
    """What the ``queue`` of a run's jobs means, so many ``agents`` having been seen of each ``JOB.RESTART``."""
    coming = pending = 0
    for job in queue:
        if job.state in _ON:
            coming += max(0, job.nodes - agents.get(f"{job.id}.{job.restarts}", 0))
        elif job.state in _TO_COME:
            pending += job.nodes
    return Outlook(coming, pending)


@dataclass(frozen=True)
class Capacity:
    """What SLURM has given to a run, or will."""

    running: int
    """Nodes that it has, but for those that their agents have left and that idle until their job ends."""

    waiting: int
    """Nodes that it is still to get."""

    elements: tuple[str, ...]
    """Elements of arrays, of one node each, that wait; the newest last."""


def capacity_of(queue: Iterable[QueuedJob], left: Mapping[str, int]) -> Capacity:
    """What the ``queue`` of a run's jobs has, so many agents having ``left`` nodes of each ``JOB.RESTART``."""
    queue = list(queue)
    running = [max(0, job.nodes - left.get(f"{job.id}.{job.restarts}", 0)) for job in queue if job.state in _ON]
    waiting = [job for job in queue if job.state in _TO_COME]
    elements = sorted((int(job.array), int(job.task), job.element) for job in waiting if job.task)
    return Capacity(sum(running), sum(job.nodes for job in waiting), tuple(name for _, _, name in elements))


def held_back(queue: Iterable[QueuedJob]) -> frozenset[str]:
    """Requeued jobs that could start but for the wait that SLURM lays on them."""
    return frozenset(
        job.id for job in queue if job.state == "PENDING" and job.restarts > 0 and job.reason == "BeginTime"
    )
