"""The leaders: the few nodes that act first.

Pure. Any node may execute any decision. If all nodes tried at once, each would read all leases, a load that grows with
the square of their number. So a node that publishes something notifies the leaders, which poll at once, one after the
other. The other nodes poll now and then, in case that no leader is left.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import islice
from math import inf, log2

from hpcelastic.protocol.peers import linked
from hpcelastic.protocol.spread import share
from hpcelastic.protocol.state import Member, NodeState, Participant, Phase, State, View

COUNT = 3
"""The number of leaders, if there are enough nodes."""

_LARGE = 64
"""Nodes of the largest job that is not large."""

_TURN_INTERVAL = 3.0
"""Seconds in which the number of nodes that have looked doubles."""

_MAX_TURN_RATE = 32
"""Nodes that look in a second. Each look is a listing of all leases."""

_WATCHERS = 10
"""Nodes without a part in a round that read the leases often, on average."""


def is_large(nodes: int) -> bool:
    """Return whether so many nodes must not do the same thing all at once."""
    return nodes > _LARGE


def first_turn(member: Member) -> float:
    """Return how many seconds after it has become ready a node looks for others for the first time.

    In a large job that is a long listing for each node. So its first nodes look at once, and the others one after the
    other, in case that those are lost and no round has formed meanwhile.
    """
    return _turn(member.order) if is_large(member.job_nodes) else 0.0


def leaders(state: State, view: View, nodes: int) -> list[Participant | Member]:
    """Return the leaders in order: live members of the last round; if none is alive, ready nodes.

    They are the first live members of all. In a large round they are those of each third of the ranks, because nodes
    with neighbouring ranks may share a switch, and may be lost together. If a third has none, a ready node takes the
    place: after a requeue, the death of the last of the members may not be known yet. There are ``nodes`` in all, at
    least.
    """
    count = len(state.participants)
    if not is_large(count):
        return list(islice(_live(state, view, range(count)), COUNT)) or _ready(state, view, nodes)
    size = -(-count // COUNT)
    parts = (range(start, min(start + size, count)) for start in range(0, count, size))
    firsts = (next(_live(state, view, part), None) for part in parts)
    found: list[Participant | Member] = [first for first in firsts if first is not None]
    if len(found) < COUNT:
        there = {leader.node for leader in found}
        found += [member for member in _ready(state, view, nodes) if member.node not in there]
    return found[:COUNT]


def leader_rank(found: Sequence[Participant | Member], state: State, own: Member, nodes: int) -> int | None:
    """Return the rank of a node among the leaders that were ``found``; None if it is none of them.

    While a round forms, the first of many ready nodes are leaders too; see `stand_in_turn`.
    """
    rank = next((rank for rank, leader in enumerate(found) if leader.node == own.node), None)
    if rank is None and stand_in_turn(state, own, nodes) == 0.0:
        return COUNT + _place(own, nodes)
    return rank


def stand_in_turn(state: State, own: Member, nodes: int) -> float:
    """Return how many seconds after it has become ready a node looks whether the leaders live; infinity if it need not.

    After a requeue the members of the last round may all be gone, and their leases have not expired yet. They may also
    have left. The first of many ready nodes look at once. They may be lost too, and few of ``nodes`` may be there, so
    the others follow.
    """
    ready = state.phase is Phase.JOINING and own.node_state is NodeState.READY
    return _turn(_place(own, nodes)) if ready and is_large(nodes) else inf


def watches(state: State, own: Member, nodes: int) -> bool:
    """Return whether a node that waits reads the leases as often as the members of a round that runs.

    All members may be lost, and the leaders of many nodes while a round forms. About ten of the nodes outside the last
    round find that, however many of all ``nodes`` they are, and ten others.
    """
    if own.node_state is not NodeState.READY or state.phase.final:
        return False
    outside = 0 if own.node in state.ranks else nodes - len(state.participants)
    if state.phase is Phase.RUNNING:
        return own.node not in state.ranks and share(own.node) * max(1, outside) < _WATCHERS
    return is_large(nodes) and share(own.node) * (outside or nodes) < _WATCHERS


def precedence(node: str, order: int, job_nodes: int, nodes: int) -> tuple[bool, float, str]:
    """Return the key by which ready nodes are sorted to find the leaders of a run of so many ``nodes``.

    In a large job it is the ``order`` of the node. Many small jobs, or nodes without a job, have the same orders. Of
    two nodes of a large run the same one comes first for all nodes, however many of the others each has seen. Otherwise
    two could wait for each other.
    """
    alone = _is_alone(job_nodes, nodes)
    return alone, share(node) if alone else order, node


def turn(state: State, own: str, lost: str) -> int:
    """Return after how many other neighbours the node ``own`` looks at the lease of a neighbour that seems lost.

    To look is to list all leases. In a large round one neighbour looks at once, and the others later, in case that it
    was lost too.
    """
    count = len(state.participants)
    if not is_large(count) or own not in state.ranks or lost not in state.ranks:
        return 0
    ranks = linked(state.ranks[lost], count)
    return ranks.index(state.ranks[own]) if state.ranks[own] in ranks else 0


def around(state: State, node: str) -> list[Participant]:
    """Return the neighbours of a member of the round, in the order of their turns; none of another node."""
    rank = state.ranks.get(node)
    return [] if rank is None else [state.participants[there] for there in linked(rank, len(state.participants))]


def rivals(before: State, after: State) -> list[Participant]:
    """Return the members of the last round, beside the leaders, that may be about to commit ``after`` too: the
    neighbours of a node that was lost."""
    return around(before, after.lost)


def _is_alone(job_nodes: int, nodes: int) -> bool:
    """Return whether the order in a job says little about the place of a node among so many ``nodes``."""
    return is_large(nodes) and not is_large(job_nodes)


def _place(member: Member, nodes: int) -> int:
    """Return the place of a ready node among so many ``nodes``, in the order in which they look."""
    return int(share(member.node) * nodes) if _is_alone(member.job_nodes, nodes) else member.order


def _turn(place: int) -> float:
    """Return the seconds until the turn of the node at this place.

    The first ones look at once. Then their number doubles again and again: a few that wait of a run that was large
    look soon, and while the first of many can still decide, few look.
    """
    return max(_TURN_INTERVAL * log2((place + 1) / COUNT), place / _MAX_TURN_RATE) if place >= COUNT else 0.0


def _live(state: State, view: View, ranks: Iterable[int]) -> Iterator[Participant]:
    """Yield the members of the last round with these ranks that are alive and have not left."""
    members = (state.participants[rank] for rank in ranks)
    return (p for p in members if p.node not in view.dead and p.node != state.just_lost and not _has_left(view, p.node))


def _has_left(view: View, node: str) -> bool:
    seen = view.nodes.get(node)
    return seen is not None and seen.member is not None and seen.member.node_state is NodeState.LEFT


def _ready(state: State, view: View, nodes: int) -> list[Participant | Member]:
    members = (seen.member for seen in view.nodes.values() if seen.member and seen.alive)
    found = (m for m in members if m.node_state is NodeState.READY and m.round <= state.round)
    return [*nsmallest(COUNT, found, key=lambda m: precedence(m.node, m.order, m.job_nodes, nodes))]
