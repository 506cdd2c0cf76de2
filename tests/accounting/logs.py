"""Event logs of a run on some nodes, written by hand. Times are in seconds from the beginning of the run."""

from collections.abc import Mapping
from dataclasses import replace

from hpcelastic.accounting.journal import SECOND, Job, Journal, Log, log_of
from hpcelastic.protocol.events import (
    AgentEnded,
    AgentStarted,
    ClockMeasured,
    Decided,
    Event,
    LoggedEvent,
    RunEnded,
    StateChanged,
    TrainingTotals,
    WorkerEnded,
    WorkersParked,
    WorkersStarted,
)
from hpcelastic.protocol.state import Cause, Phase

BEGIN = 1_700_000_000.0
"""The time of the beginning, in seconds since the epoch, on the clock of the filesystem."""

BOOT = 5000.0
"""The seconds from the start of the nodes to the beginning."""


class Node:
    """One agent, and its log. Its wall clock is ``skew`` seconds ahead."""

    def __init__(self, name: str, skew: float = 0.0, incarnation: str = "0-a") -> None:
        self.name, self.id, self.skew = name, f"{name}@{incarnation}", skew
        self.events: list[LoggedEvent] = []
        self.version = 0

    def log(self, time: float, event: Event) -> None:
        """Log an event at a time."""
        self.events.append(LoggedEvent(BEGIN + time + self.skew, self.name, event, BOOT + time))

    def start(
        self,
        time: float,
        launched: float | None = None,
        job: str = "",
        nodes: int = 0,
        job_start: float | None = None,
    ) -> None:
        up = None if launched is None else BOOT + launched
        self.log(
            time,
            AgentStarted(
                address="h",
                pid=7,
                workers=1,
                launched=up,
                job=job or None,
                job_nodes=nodes or None,
                job_start=job_start,
            ),
        )
        self.log(time, ClockMeasured(least=BEGIN - BOOT - 0.001, most=BEGIN - BOOT + 0.001))

    def state(
        self, time: float, phase: Phase, round: int, cause: Cause | None = None, lost: str = "", reason: str = ""
    ) -> None:
        self.version += 1
        changed = StateChanged(version=self.version, phase=phase, round=round, restarts=0, reason=reason)
        self.log(time, replace(changed, cause=cause, lost=lost or None))

    def workers(self, time: float, round: int) -> None:
        self.log(time, workers_started(round))

    def train(self, time: float, round: int, **times: float) -> None:
        """Log totals at ``time``. Those among ``times`` that end with ``at`` are times; see `TrainingTotals`."""
        values = {name.removesuffix("_at"): BOOT + t if name.endswith("_at") else t for name, t in times.items()}
        whole = {name: int(values.pop(name)) for name in ("steps", "before", "saved_step", "saves") if name in values}
        self.log(time, TrainingTotals(round=round, rank=0, steps=whole.pop("steps", 0), **whole, **values))  # type: ignore[arg-type]  # by name

    def park(self, time: float, round: int) -> None:
        self.log(time, WorkersParked(round=round, reason="", ranks=(0,)))

    def fail(self, time: float, round: int) -> None:
        self.log(time, WorkerEnded(round=round, rank=0, exit_code=1))

    def end(self, time: float, phase: Phase = Phase.SUCCEEDED) -> None:
        self.log(time, RunEnded(phase=phase, reason=""))
        self.log(time, AgentEnded())


def workers_started(round: int, rank: int = 0) -> WorkersStarted:
    """Return the event of a node with one worker."""
    return WorkersStarted(
        round=round,
        world_size=rank + 1,
        group_rank=rank,
        group_world_size=rank + 1,
        role_rank=rank,
        role_world_size=rank + 1,
        pids={rank: 1},
        cpus="0",
    )


def decided(
    node: Node, time: float, phase: Phase, round: int, *members: str, lost: str = "", silence: float | None = None
) -> None:
    """Log that ``node`` has written the version that it reads next."""
    version, names = node.version + 1, members or None
    event = Decided(version=version, phase=phase, round=round, reason="", members=names, lost=lost or None)
    node.log(time, replace(event, silence=silence))


def journal(
    *nodes: Node,
    jobs: Mapping[str, float] | None = None,
    wanted: int = 0,
    now: float | None = None,
    last_sign: float | None = None,
) -> Journal:
    """Return the journal of the nodes. ``jobs`` has the time of submission of each job."""
    logs: tuple[Log, ...] = tuple(log_of(node.id, node.events) for node in nodes)
    submitted = tuple(Job(job, micros(time), None) for job, time in (jobs or {}).items())
    present, last = (None if time is None else micros(time) for time in (now, last_sign))
    return Journal(logs, submitted, wanted, None, present, last)


def micros(time: float) -> int:
    """Return a time from the beginning in microseconds since the epoch."""
    return round((BEGIN + time) * SECOND)
