"""The event logs of a run on one clock, that of the run's filesystem. Pure.

A node's own clock may be wrong, and may be set while the run lasts. Its clock since boot is neither. The agents measure
how far the clock of the filesystem, which all nodes share, is ahead of it. Times are in microseconds since the epoch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpcelastic.accounting.folded import Fold
from hpcelastic.protocol.events import ClockMeasured, Event, LoggedEvent, TrainingTotals

SECOND = 1_000_000
"""Microseconds of a second."""


@dataclass(frozen=True)
class Entry:
    """An event of one log."""

    time: int
    event: Event
    line: int = 0
    """The number of its line in the log, from 1; 0 if it is unknown."""


@dataclass(frozen=True)
class Log:
    """The log of one agent. The times of its entries never fall."""

    node: str
    """``NAME@INCARNATION``."""

    entries: tuple[Entry, ...]
    uncertainty: int | None
    """The times may be wrong by so much; None if the agent has not compared its clock with that of the filesystem."""

    offset: float | None = None
    """The filesystem's time, in seconds since the epoch, minus the seconds since the node's start. None if it is
    unknown."""

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.node.rpartition("@")[0] or self.node

    def at(self, up: float | None) -> int | None:
        """Return the time that is ``up`` seconds after the node's start; None if it is unknown."""
        return None if up is None or self.offset is None else round((up + self.offset) * SECOND)


@dataclass(frozen=True)
class Job:
    """A SLURM job that was submitted for the run."""

    id: str
    submitted: int
    nodes: int | None
    """Number of its nodes; None if it is not known until the job starts. That of an array is its number of elements."""

    ended: tuple[str, ...] = ()
    """SLURM's states of the job, or of the elements of the array, if no agent is left; empty if they are unknown."""


@dataclass(frozen=True)
class Journal:
    """All that is known of a run."""

    logs: tuple[Log, ...]
    jobs: tuple[Job, ...] = ()
    wanted: int = 0
    """Number of nodes that the run's settings want; for jobs that have never started."""

    totals: Mapping[str, TrainingTotals] | None = None
    """The newest totals of the running round that are in files, by node."""

    now: int | None = None
    """The present time, if the run has not ended."""

    last_sign: int | None = None
    """The time of the last renewal of a lease by any agent, if the run has not ended; None if it is unknown."""

    abandoned: bool = False
    """Whether the last renewal is so long ago that no agent is alive, although the run has not ended."""

    fold: Fold | None = None
    """The account of the first rounds, whose events the logs need not have."""

    renewed: Mapping[str, int] | None = None
    """The time of the last renewal of each lease that is still there, by node."""

    expiry: int = 0
    """The age of the last renewal at which its agent is dead, in microseconds."""

    @property
    def end(self) -> int:
        """The end of the accounts: the present time, or the time of the last event."""
        last = max(
            (log.entries[-1].time for log in self.logs if log.entries), default=self.fold.until if self.fold else 0
        )
        jobs = max((job.submitted for job in self.jobs), default=0)
        return max(last, jobs, self.now or 0)


def log_of(node: str, events: Sequence[LoggedEvent]) -> Log:
    """Return the log of ``node`` with all its ``events``, in the order of the file."""
    measured = [event.event for event in events if isinstance(event.event, ClockMeasured)]
    offset, uncertainty = _offset(events, measured)
    entries: list[Entry] = []
    for event in events:
        by_boot = offset is not None and event.up is not None
        time = round(((event.up or 0.0) + (offset or 0.0) if by_boot else event.time) * SECOND)
        # A line of an older agent, or a damaged one, may have a wrong time. The order in the file is right.
        entries.append(Entry(max(time, entries[-1].time) if entries else time, event.event, event.line))
    return Log(node, tuple(entries), uncertainty, offset)


def _offset(events: Sequence[LoggedEvent], measured: Sequence[ClockMeasured]) -> tuple[float | None, int | None]:
    """Return the filesystem's time minus the seconds since the node's start, and its uncertainty in microseconds."""
    if measured:
        least, most = measured[-1].least, measured[-1].most
        return (least + most) / 2, round((most - least) / 2 * SECOND)
    differences = [event.time - event.up for event in events if event.up is not None]
    return (differences[0] if differences else None), None


def merged(logs: Iterable[Log]) -> list[tuple[Log, Entry]]:
    """Return the entries of all logs in the order of time."""
    found = [(log, entry) for log in logs for entry in log.entries]
    return sorted(found, key=lambda each: each[1].time)
