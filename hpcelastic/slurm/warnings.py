"""What a signal of SLURM means, once SLURM has been asked how the job stands. Pure.

The same SIGTERM goes out for a preemption with minutes of grace, for `scancel` and for a time limit that is over, and
the same SIGUSR1 or SIGUSR2 for a time limit to come and for a person's wish. Times are taken from one answer of the
controller, each as a difference, so that its clock and ours need not agree.
"""

from dataclasses import dataclass

from hpcelastic.protocol.state import Again, Notice


@dataclass(frozen=True)
class JobInfo:
    """How a job stands. Source: scontrol(1), SHOW JOB."""

    state: str
    """``RUNNING``, ``COMPLETING``, ``CANCELLED`` …"""

    left: float | None
    """Seconds until its time limit, or until its grace ends if it is being preempted; None if that is unknown."""

    preempted: bool
    requeue: bool
    """Whether it may be requeued."""

    restarts: int = 0
    """How often it was requeued. SLURM counts as soon as it has decided, while the tasks are still ending."""

    held: bool = False
    """SLURM has requeued it and holds it, because it has done so ``MaxBatchRequeue`` times."""

    @property
    def runs(self) -> bool:
        """Whether it has its nodes and SLURM is not ending it."""
        return self.state in ("RUNNING", "CONFIGURING", "SIGNALING")


@dataclass(frozen=True)
class Policy:
    """What a job's agents do when they are warned."""

    warning: float
    """Seconds before the time limit at which SLURM was asked to send SIGUSR2."""

    stop_grace: float
    """Seconds that workers have where nobody knows better."""

    requeue: bool
    """Go on after a preemption."""

    beyond_limit: bool
    """Go on after the time limit."""


CHECKPOINT = "a checkpoint is wanted"
"""What SIGUSR1 and SIGUSR2 mean in a job that need not end."""

_EARLY = 90.0
"""Seconds that SLURM may send the signal early, and a few more. Source: sbatch(1), --signal."""


def meaning(job: JobInfo, polite: bool, policy: Policy) -> Notice | str:
    """What a signal means: that the node must go, or `CHECKPOINT`.

    ``polite`` is True for SIGUSR1 and SIGUSR2, False for SIGTERM.
    """
    if not job.runs:
        return Notice(f"SLURM ends the job ({job.state.lower()})", policy.stop_grace)
    if job.preempted:
        again: Again = "" if not job.requeue else "preemption" if policy.requeue else "never"
        return Notice("SLURM preempts the job", less_margin(job.left), again)
    if polite and job.left is not None and job.left <= policy.warning + _EARLY:
        return Notice(
            "the time limit comes", less_margin(job.left), "limit" if job.requeue and policy.beyond_limit else ""
        )
    return CHECKPOINT if polite else Notice("SIGTERM", policy.stop_grace)


def guess(polite: bool, policy: Policy, waited: float = 0.0) -> Notice:
    """The same where SLURM has not answered for ``waited`` seconds: what it was asked for beforehand is likeliest."""
    unknown: Again = "unknown" if policy.requeue else ""
    if polite:
        seconds = less_margin(policy.warning - waited)
        return Notice("SLURM warns the job", seconds, "limit" if policy.beyond_limit else unknown)
    return Notice("SIGTERM, and SLURM does not say why", policy.stop_grace, unknown)


def less_margin(seconds: float | None) -> float:
    """What workers are given of the time until SLURM kills them: some of it is for their end, and for goodbyes."""
    seconds = seconds or 0.0
    return max(0.0, seconds - min(10.0, max(2.0, seconds / 10)))
