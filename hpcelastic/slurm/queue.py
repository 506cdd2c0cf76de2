"""The jobs of a run in SLURM's queue, and the capacity of the run that follows from them. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpcelastic.agent.batch_system import PendingCapacity

_RUNNING_STATES = ("RUNNING", "CONFIGURING", "SUSPENDED")
_PENDING_STATES = ("PENDING", "REQUEUED")


@dataclass(frozen=True)
class QueuedJob:
    """A job, or an element of an array, in the output of squeue."""

    id: str
    array: str
    """The array's id; the job's own id if it belongs to no array."""

    task: str
    """The index in the array; empty if the job belongs to no array."""

    state: str
    nodes: int
    restarts: int
    reason: str

    @property
    def element(self) -> str:
        """The name that cancels this element alone. Pending elements of an array may share one id."""
        return f"{self.array}_{self.task}" if self.task else self.id


def pending_capacity(queue: Iterable[QueuedJob], agents: Mapping[str, int]) -> PendingCapacity:
    """Return the pending capacity of a run from its jobs in the queue and its number of agents by ``JOB.RESTART``."""
    expected = pending = 0
    for job in queue:
        if job.state in _RUNNING_STATES:
            expected += max(0, job.nodes - agents.get(f"{job.id}.{job.restarts}", 0))
        elif job.state in _PENDING_STATES:
            pending += job.nodes
    return PendingCapacity(expected, pending)


@dataclass(frozen=True)
class Capacity:
    """The nodes that SLURM has allocated to a run, or will."""

    running: int
    """Nodes that the run has, without idle ones: their agents have left, and their job has not ended yet."""

    waiting: int
    """Nodes of pending jobs."""

    elements: tuple[str, ...]
    """Pending elements of arrays, of one node each, the newest last."""


def capacity_of(queue: Iterable[QueuedJob], departed: Mapping[str, int]) -> Capacity:
    """Return the capacity of a run from its jobs in the queue and the number of agents that ``departed``.

    The keys of ``departed`` are ``JOB.RESTART``.
    """
    queue = list(queue)
    running = [
        max(0, job.nodes - departed.get(f"{job.id}.{job.restarts}", 0)) for job in queue if job.state in _RUNNING_STATES
    ]
    waiting = [job for job in queue if job.state in _PENDING_STATES]
    elements = sorted((int(job.array), int(job.task), job.element) for job in waiting if job.task)
    return Capacity(sum(running), sum(job.nodes for job in waiting), tuple(name for _, _, name in elements))


def delayed_requeues(queue: Iterable[QueuedJob]) -> frozenset[str]:
    """Return the requeued jobs that do not start yet only because of the delay that SLURM sets after a requeue."""
    return frozenset(
        job.id for job in queue if job.state == "PENDING" and job.restarts > 0 and job.reason == "BeginTime"
    )
