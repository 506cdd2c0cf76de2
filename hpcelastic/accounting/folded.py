"""The exact account of the first rounds of a long run, which makes most of its events unnecessary. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from hpcelastic.accounting.categories import Category
from hpcelastic.protocol.state import Cause, job_start

S = TypeVar("S", "Sums", "FaultSums")


@dataclass(frozen=True)
class Fault:
    """A round that the failure of a worker or the loss of a node has ended, with its cost."""

    round: int
    time: int
    """The first sign of the fault."""

    cause: Cause
    hung: bool
    """Whether the round was ended because it made no progress."""

    reason: str
    node: str
    """The name of the node that was lost, or that is in the report of the failure; empty if it is unknown."""

    cost: Mapping[Category, int]
    """Node time that was lost, in microseconds, until all nodes made new steps."""

    stopped: int | None
    """Microseconds from the fault to the first new step; None if there was none."""


@dataclass(frozen=True)
class Sums:
    """Sums over rounds. Times are in microseconds."""

    useful_wall: int = 0
    """Wall time of steps that count."""

    running: int = 0
    """Wall time in which the rounds ran."""

    calls: int = 0
    """The number of calls of ``should_stop()``."""

    stepping: int = 0
    """Wall time of steps."""

    saves: int = 0
    saving: int = 0
    """Wall time in which training waited for saves."""

    def __add__(self, other: "Sums") -> "Sums":
        return _added(self, other)


KEPT_FAULTS = 1000
"""The number of the newest faults that a fold describes one by one."""


@dataclass(frozen=True)
class FaultSums:
    """Sums over faults."""

    worker: int = 0
    """The number of failures of workers, without hangs."""

    node: int = 0
    """The number of losses of nodes."""

    hang: int = 0
    """The number of hangs."""

    stopped: int = 0
    """Microseconds from faults to the first new steps, of those faults after which there was one."""

    resumed: int = 0
    """The number of these faults."""

    @property
    def count(self) -> int:
        """The number of faults."""
        return self.worker + self.node + self.hang

    def __add__(self, other: "FaultSums") -> "FaultSums":
        return _added(self, other)


def _added(one: S, other: S) -> S:
    """Return the sums of two parts, field by field."""
    return type(one)(*(getattr(one, field.name) + getattr(other, field.name) for field in fields(one)))


def sums_of(faults: Sequence[Fault]) -> FaultSums:
    """Return the sums over ``faults``."""
    kinds = Counter("hang" if fault.hung else fault.cause.value for fault in faults)
    stopped = [fault.stopped for fault in faults if fault.stopped is not None]
    return FaultSums(kinds["worker"], kinds["node"], kinds["hang"], sum(stopped), len(stopped))


@dataclass(frozen=True)
class EndedAgent:
    """An agent that has ended, as far as it matters for the time after its end."""

    node: str
    """``NAME@INCARNATION``."""

    begin: int
    end: int
    machine: str
    started_by: str
    job_nodes: int | None
    ended_before: int
    """A round that began after its end."""

    @property
    def job(self) -> str:
        """The id of its job, without the restart count; empty outside of SLURM."""
        return job_start(self.started_by)[0]


def needed(ended: Iterable[EndedAgent], logs: Collection[str], present: Collection[str]) -> tuple[EndedAgent, ...]:
    """Return the agents that matter for an account.

    They are those that still have ``logs``, which need not be read, and those that tell how long a job has had its
    nodes: of a job start that has agents (``present``) the last agent on each machine, and of another job the last one.
    """
    found = {agent.node: agent for agent in ended if agent.node in logs}
    last: dict[tuple[str, str], EndedAgent] = {}
    for agent in sorted(ended, key=lambda agent: agent.end):
        if agent.started_by:
            place = (agent.started_by, agent.machine) if agent.started_by in present else ("", agent.job)
            before = last.get(place)
            most = max(agent.job_nodes or 0, (before.job_nodes or 0) if before else 0)
            last[place] = replace(agent, job_nodes=most or None)
    found.update((agent.node, agent) for agent in last.values())
    return tuple(found.values())


@dataclass(frozen=True)
class Fold:
    """The account of a run up to a time. Times are in microseconds since the epoch."""

    kept: int
    """The first round whose events are needed for the account of the whole run."""

    until: int
    """The time at which the round after it began."""

    begin: int
    categories: Mapping[Category, int]
    """Node time up to ``until``, by category."""

    faults: tuple[Fault, ...]
    """The newest faults of the rounds before ``kept``, at most `KEPT_FAULTS`."""

    fault_sums: FaultSums
    """Sums over all faults of these rounds."""

    sums: Sums
    """Sums over the rounds before ``kept``."""

    steps: int
    """The number of steps that these rounds have reached."""

    ended: tuple[EndedAgent, ...]
    """The agents that have ended before round ``kept`` began, as far as they matter; see `needed`."""
