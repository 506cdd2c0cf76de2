"""The transitions of a run and of a node: two tables, from which the diagrams of docs/protocol.md are made.

Pure: values only. `decide` refuses to return a transition of a run that is not in `RUN_EDGES`. A node that publishes
the same state again makes no transition.
"""

from dataclasses import dataclass
from enum import Enum

from hpcelastic.protocol.state import NodeState, Phase, State


class Mover(str, Enum):
    """The function that makes a transition of a run."""

    DECIDE = "decide"
    CLOSE = "close"
    FAIL = "fail"
    REOPEN = "reopen"
    STEER = "steer"


@dataclass(frozen=True)
class RunEdge:
    """A transition from one phase of a run to another."""

    mover: Mover
    source: Phase
    target: Phase
    when: str


@dataclass(frozen=True)
class NodeEdge:
    """A transition from one state of a node to another."""

    source: NodeState
    target: NodeState
    when: str


RUN_EDGES = (
    RunEdge(Mover.DECIDE, Phase.JOINING, Phase.RUNNING, "enough nodes are ready, and no member has workers left"),
    RunEdge(Mover.DECIDE, Phase.JOINING, Phase.FAILED, "the restart budget is spent, or a final member has succeeded"),
    RunEdge(Mover.DECIDE, Phase.JOINING, Phase.JOINING, "a fault occurred in the grace period"),
    RunEdge(Mover.DECIDE, Phase.JOINING, Phase.SUCCEEDED, "every member has succeeded in the grace period"),
    RunEdge(Mover.DECIDE, Phase.RUNNING, Phase.JOINING, "a worker failed, a member was lost or leaves, a node joins"),
    RunEdge(Mover.DECIDE, Phase.RUNNING, Phase.SUCCEEDED, "every member has succeeded"),
    RunEdge(Mover.CLOSE, Phase.JOINING, Phase.CLOSED, "closed by the user"),
    RunEdge(Mover.CLOSE, Phase.RUNNING, Phase.CLOSED, "closed by the user"),
    RunEdge(Mover.FAIL, Phase.RUNNING, Phase.FAILED, "an agent of torchrun ends before its workers have succeeded"),
    RunEdge(Mover.STEER, Phase.JOINING, Phase.JOINING, "scaled or drained by the user"),
    RunEdge(
        Mover.STEER,
        Phase.RUNNING,
        Phase.RUNNING,
        "scaled or drained by the user, stacks are requested, a hang is examined, or stragglers are found",
    ),
    RunEdge(Mover.STEER, Phase.RUNNING, Phase.JOINING, "a checkpoint is requested"),
    *(RunEdge(Mover.REOPEN, phase, Phase.JOINING, "reopened by the user") for phase in Phase),
)
"""No other transition of a run is ever committed."""

NODE_EDGES = (
    NodeEdge(NodeState.READY, NodeState.RUNNING, "a round formed with this node, its workers start"),
    NodeEdge(NodeState.READY, NodeState.READY, "a round formed and ended without workers here"),
    NodeEdge(NodeState.RUNNING, NodeState.SUCCEEDED, "all workers ended with status 0"),
    NodeEdge(NodeState.RUNNING, NodeState.FAILED, "a worker failed"),
    NodeEdge(NodeState.RUNNING, NodeState.READY, "the round ended or the lease expired, and all workers have ended"),
    NodeEdge(NodeState.SUCCEEDED, NodeState.READY, "the round ended before all had succeeded"),
    NodeEdge(NodeState.FAILED, NodeState.READY, "the round ended, and all workers have ended"),
    *(NodeEdge(s, NodeState.LEFT, "the agent ends") for s in (NodeState.READY, NodeState.RUNNING, NodeState.FAILED)),
)
"""No other transition of a node is ever published. A node that ends after its success publishes nothing more, so that
its success stays."""

_RUN_TRANSITIONS = frozenset((edge.mover, edge.source, edge.target) for edge in RUN_EDGES)
_NODE_TRANSITIONS = frozenset((edge.source, edge.target) for edge in NODE_EDGES)


def checked(mover: Mover, old: State, new: State) -> State:
    """Return ``new`` if it is a permitted transition from ``old``; raise AssertionError, a bug, otherwise."""
    if (mover, old.phase, new.phase) not in _RUN_TRANSITIONS:
        raise AssertionError(f"{mover.value} must not take a run from {old.phase.value} to {new.phase.value}")
    return new


def may_publish(old: NodeState, new: NodeState) -> bool:
    """True if a node in state ``old`` may publish ``new`` next."""
    return old is new or (old, new) in _NODE_TRANSITIONS
