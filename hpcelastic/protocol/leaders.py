"""The leaders: the few nodes that act first.

Pure. Any node may execute any decision. If all nodes tried at once, each would read all leases, a load that grows with
the square of their number. So a node that publishes something notifies the leaders, which poll at once, one after the
other. The other nodes poll now and then, in case that no leader is left.
"""

from collections.abc import Sequence
from heapq import nsmallest
from itertools import islice

from hpcelastic.protocol.peers import linked
from hpcelastic.protocol.state import Member, NodeState, Participant, Phase, State, View

COUNT = 3
"""The number of leaders, if there are enough nodes."""

_LARGE = 64
"""Nodes of the largest job that is not large."""

_LOOK_INTERVAL = 0.5
"""Seconds from the look of some nodes of a large job until the next ones look."""


def is_large(nodes: int) -> bool:
    """Return whether so many nodes must not do the same thing all at once."""
    return nodes > _LARGE


def first_look(member: Member) -> float:
    """Return how long a node that has just become ready waits before it looks for others.

    In a large job that is a long listing for each node. So its first nodes look at once, and the others one after the
    other, in case that those are lost and no round has formed meanwhile.
    """
    return member.order // COUNT * _LOOK_INTERVAL if is_large(member.job_nodes) else 0.0


def leaders(state: State, view: View) -> list[Participant | Member]:
    """Return the leaders in order: the first live members of the last round; if none is alive, ready nodes."""
    members = (p for p in state.participants if p.node not in view.dead and p.node != state.just_lost)
    return list(islice(members, COUNT)) or _ready(state, view)


def leader_rank(found: Sequence[Participant | Member], state: State, own: Member) -> int | None:
    """Return the rank of a node among the leaders that were ``found``; None if it is none of them.

    While a round forms, the first ready nodes of a large job are leaders too. After a requeue the members of the last
    round may all be gone, and their leases have not expired yet.
    """
    rank = next((rank for rank, leader in enumerate(found) if leader.node == own.node), None)
    ready = state.phase is Phase.JOINING and own.node_state is NodeState.READY
    if rank is None and ready and is_large(own.job_nodes) and own.order < COUNT:
        return COUNT + own.order
    return rank


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


def _ready(state: State, view: View) -> list[Participant | Member]:
    found = (s.member for s in view.nodes.values() if s.member and s.alive and s.member.round <= state.round)
    return [*nsmallest(COUNT, found, key=lambda m: (m.order, m.node))]
