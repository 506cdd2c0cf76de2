"""The meaning of a signal from SLURM, resolved by the state of the job. Pure.

SLURM sends the same SIGTERM for a preemption with minutes of grace, for `scancel` and after the time limit. The same
SIGUSR1 or SIGUSR2 announces the time limit or is sent by a user. All times are differences of values in one answer of
scontrol, which takes the time that the job has run by the clock of this node. So that clock should agree with the
controller's.
"""

from dataclasses import dataclass

from hpcelastic.protocol.state import Notice, RequeueReason


@dataclass(frozen=True)
class JobInfo:
    """The state of a job. Source: scontrol(1), SHOW JOB."""

    state: str
    """``RUNNING``, ``COMPLETING``, ``CANCELLED`` …"""

    time_left: float | None
    """Seconds until its time limit, or until the end of its grace period if it is being preempted; None if unknown."""

    preempted: bool
    requeue: bool
    """Whether it may be requeued."""

    restarts: int = 0
    """How often it was requeued. SLURM increments it as soon as it has decided, while the tasks are still ending."""

    held: bool = False
    """Whether SLURM has requeued it ``MaxBatchRequeue`` times and therefore holds it."""

    eligible: float | None = None
    """The time from which SLURM could start it, in seconds since the epoch; None if it is unknown."""

    batch_host: str = ""
    """The node of its batch script; empty if it has none, as a job of salloc."""

    excluded: str = ""
    """The nodes that it must not get, in SLURM's notation; empty if there are none."""

    @property
    def running(self) -> bool:
        """Whether it has its nodes and SLURM is not ending it."""
        return self.state in ("RUNNING", "CONFIGURING", "SIGNALING")


@dataclass(frozen=True)
class Policy:
    """The reaction of a job's agents to a signal."""

    warning: float
    """Seconds before the time limit at which SLURM was asked to send SIGUSR2."""

    stop_grace: float
    """Seconds that workers have to stop where nothing else is known."""

    requeue: bool
    """Whether the job is started again after a preemption."""

    beyond_limit: bool
    """Whether the job is started again after the time limit."""


CHECKPOINT = "a checkpoint is requested"
"""The meaning of SIGUSR1 and SIGUSR2 in a job that need not end."""

_EARLY_MARGIN = 90.0
"""Seconds by which SLURM may send the signal early, and some more. Source: sbatch(1), --signal."""


def resolve(job: JobInfo, user_signal: bool, policy: Policy) -> Notice | str:
    """Return the meaning of a signal: a notice that the node must go, or `CHECKPOINT`.

    ``user_signal`` is True for SIGUSR1 and SIGUSR2, False for SIGTERM.
    """
    if not job.running:
        return Notice(f"SLURM ends the job ({job.state.lower()})", policy.stop_grace)
    if job.preempted:
        requeue: RequeueReason = "" if not job.requeue else "preemption" if policy.requeue else "never"
        return Notice("SLURM preempts the job", subtract_margin(job.time_left), requeue)
    if user_signal and job.time_left is not None and job.time_left <= policy.warning + _EARLY_MARGIN:
        requeue = "limit" if job.requeue and policy.beyond_limit else ""
        return Notice("the time limit is near", subtract_margin(job.time_left), requeue)
    return CHECKPOINT if user_signal else Notice("SIGTERM", policy.stop_grace)


def resolve_without_answer(user_signal: bool, policy: Policy, waited: float = 0.0) -> Notice:
    """Return the likeliest meaning of a signal where SLURM has not answered for ``waited`` seconds.

    SIGUSR1 and SIGUSR2 are taken for the warning that SLURM was asked to send.
    """
    unknown: RequeueReason = "unknown" if policy.requeue else ""
    if user_signal:
        seconds = subtract_margin(policy.warning - waited)
        return Notice("SLURM warns the job of its end", seconds, "limit" if policy.beyond_limit else unknown)
    return Notice("SIGTERM, and SLURM did not answer why", policy.stop_grace, unknown)


def subtract_margin(seconds: float | None) -> float:
    """Return the workers' part of the time until SLURM kills them. The rest is for their end and for the departure."""
    seconds = seconds or 0.0
    return max(0.0, seconds - min(10.0, max(2.0, seconds / 10)))
