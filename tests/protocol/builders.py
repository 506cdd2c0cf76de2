"""Small builders of states and views for the tables. Nodes are single letters: ``a`` is node ``a@0``."""

from dataclasses import replace
from typing import Any, Literal

from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.protocol.state import Cause, Failure, Member, NodeState, Participant, Phase, Seen, State, View


def settings(
    min_nodes: int = 1,
    max_nodes: int = 4,
    restarts: int = 3,
    last_call: float = 30.0,
    spares: int = 0,
    multiple: int = 1,
    within: Literal["switch", "block"] | None = None,
) -> Settings:
    nodes = NodeRange(min_nodes, max_nodes, spares, multiple, within)
    return Settings(nodes, RendezvousSettings(last_call=last_call), RestartSettings(restarts))


def node(name: str) -> str:
    return name if "@" in name else f"{name}@0"


def member(name: str, node_state: NodeState, round: int, **changes: Any) -> Member:
    letter = name[0]
    given = Member(node(name), node_state, round, 2, f"host-{letter}", 1000 + ord(letter), order=ord(letter) - ord("a"))
    return replace(given, **changes)


def ready(name: str, round: int, **changes: Any) -> Seen:
    return Seen(member(name, NodeState.READY, round, **changes), alive=True)


def runs(name: str, round: int, **changes: Any) -> Seen:
    return Seen(member(name, NodeState.RUNNING, round, **changes), alive=True)


def succeeded(name: str, round: int, **changes: Any) -> Seen:
    return Seen(member(name, NodeState.SUCCEEDED, round, **changes), alive=True)


def failed(name: str, round: int, timestamp: float = 0.0, message: str = "ValueError") -> Seen:
    return Seen(member(name, NodeState.FAILED, round, failure=failure(name, round, timestamp, message)), alive=True)


def failure(name: str, round: int, timestamp: float = 0.0, message: str = "ValueError") -> Failure:
    rank = 2 * (ord(name[0]) - ord("a"))
    return Failure(round, node(name), rank, 0, 1, message, timestamp=timestamp, happened=timestamp)


def left(name: str, round: int = 1) -> Seen:
    return Seen(member(name, NodeState.LEFT, round), alive=True)


def dead(seen: Seen) -> Seen:
    return seen._replace(alive=False)


def unproved(seen: Seen) -> Seen:
    return seen._replace(proved=False)


def view(*seen: Seen, quorum_for: float = 0.0, **missing: Seen) -> View:
    """Return a view of these nodes; ``a=Seen(None, False)`` for a node without a lease."""
    nodes = {s.member.node: s for s in seen if s.member is not None}
    return View({**nodes, **{node(name): s for name, s in missing.items()}}, quorum_for)


def participants(names: str) -> tuple[Participant, ...]:
    return tuple(Participant(node(name), 2, f"host-{name}", 1000 + ord(name)) for name in names)


def running(names: str, round: int = 1, given: Settings | None = None, **changes: Any) -> State:
    """Return a state in which a round runs on ``names``, one letter each."""
    state = State("run", given or settings(), Phase.RUNNING, round, participants(names))
    return replace(state, **changes)


def joining(names: str, cause: Cause | None, round: int = 1, given: Settings | None = None, **changes: Any) -> State:
    """Return a state in which a round of ``names`` has ended by ``cause``."""
    state = State("run", given or settings(), Phase.JOINING, round, participants(names), cause=cause)
    return replace(state, **changes)


def created(given: Settings | None = None) -> State:
    return State("run", given or settings())
