"""The steps that a run and a node may take: two tables, from which docs/protocol.md draws its diagrams.

Pure: values only. `decide` refuses to hand out a step of a run that is not in `RUN_EDGES`; in `NODE_EDGES` a node that
says the same again, or more of it, takes no step.
"""

from dataclasses import dataclass
from enum import Enum

from hpcelastic.protocol.state import Phase, Stand, State


class Mover(str, Enum):
    """Which function takes a step of a run."""

    DECIDE = "decide"
    CLOSE = "close"
    FAIL = "fail"
    REOPEN = "reopen"
    STEER = "steer"


@dataclass(frozen=True)
class RunEdge:
    """A step from one phase of a run to another."""

    mover: Mover
    source: Phase
    target: Phase
    when: str


@dataclass(frozen=True)
class NodeEdge:
    """A step from one stand of a node to another."""

    source: Stand
    target: Stand
    when: str


RUN_EDGES = (
    RunEdge(Mover.DECIDE, Phase.JOINING, Phase.RUNNING, "enough nodes ready, nobody of the last round has workers"),
    RunEdge(
        Mover.DECIDE, Phase.JOINING, Phase.FAILED, "the restart budget is spent, or a member has succeeded for good"
    ),
    RunEdge(Mover.DECIDE, Phase.JOINING, Phase.JOINING, "the round was to end well, and something went wrong"),
    RunEdge(Mover.DECIDE, Phase.JOINING, Phase.SUCCEEDED, "every member of the round that was to end has succeeded"),
    RunEdge(Mover.DECIDE, Phase.RUNNING, Phase.JOINING, "a worker failed, a member was lost or leaves, a node joins"),
    RunEdge(Mover.DECIDE, Phase.RUNNING, Phase.SUCCEEDED, "every member has succeeded"),
    RunEdge(Mover.CLOSE, Phase.JOINING, Phase.CLOSED, "closed by the user"),
    RunEdge(Mover.CLOSE, Phase.RUNNING, Phase.CLOSED, "closed by the user"),
    RunEdge(Mover.FAIL, Phase.RUNNING, Phase.FAILED, "a torchrun ends before its workers have succeeded"),
    RunEdge(Mover.STEER, Phase.JOINING, Phase.JOINING, "scaled or drained by the user"),
    RunEdge(Mover.STEER, Phase.RUNNING, Phase.RUNNING, "scaled or drained by the user"),
    RunEdge(Mover.STEER, Phase.RUNNING, Phase.JOINING, "a checkpoint is asked for"),
    *(RunEdge(Mover.REOPEN, phase, Phase.JOINING, "reopened by the user") for phase in Phase),
)
"""No other step of a run is ever committed."""

NODE_EDGES = (
    NodeEdge(Stand.READY, Stand.RUNNING, "a round formed with this node, its workers start"),
    NodeEdge(Stand.READY, Stand.READY, "a round formed and ended without workers here"),
    NodeEdge(Stand.RUNNING, Stand.SUCCEEDED, "all workers ended with status 0"),
    NodeEdge(Stand.RUNNING, Stand.FAILED, "a worker failed"),
    NodeEdge(Stand.RUNNING, Stand.READY, "the round ended or the lease ran out, and all workers are gone"),
    NodeEdge(Stand.SUCCEEDED, Stand.READY, "the round ended before all had succeeded"),
    NodeEdge(Stand.FAILED, Stand.READY, "the round ended, and all workers are gone"),
    *(NodeEdge(s, Stand.LEFT, "the agent ends") for s in (Stand.READY, Stand.RUNNING, Stand.FAILED)),
)
"""No other step of a node is ever said. Who has succeeded and ends says nothing more: its word stays."""

_RUN_STEPS = frozenset((edge.mover, edge.source, edge.target) for edge in RUN_EDGES)
_NODE_STEPS = frozenset((edge.source, edge.target) for edge in NODE_EDGES)


def checked(mover: Mover, old: State, new: State) -> State:
    """``new``, if a run may go there from ``old``; AssertionError, a mistake of ours, otherwise."""
    if (mover, old.phase, new.phase) not in _RUN_STEPS:
        raise AssertionError(f"{mover.value} must not take a run from {old.phase.value} to {new.phase.value}")
    return new


def may_say(old: Stand, new: Stand) -> bool:
    """True if a node that stands as ``old`` may say ``new`` next."""
    return old is new or (old, new) in _NODE_STEPS
