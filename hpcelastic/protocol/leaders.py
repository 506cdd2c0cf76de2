"""The leaders: the few nodes that act first.

Pure. Any node may execute any decision. If all nodes tried at once, each would read all leases, a load that grows with
the square of their number. So a node that publishes something notifies the leaders, which poll at once, one after the
other. The other nodes poll now and then, in case that no leader is left.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import islice
from zlib import crc32

from hpcelastic.protocol.peers import linked
from hpcelastic.protocol.state import Member, NodeState, Participant, Phase, State, View

COUNT = 3
"""The number of leaders, if there are enough nodes."""

_LARGE = 64
"""Nodes of the largest job that is not large."""

_LOOK_INTERVAL = 0.5
"""Seconds from the look of some nodes of a large job until the next ones look."""

_WATCHERS = 10
"""Nodes outside a round that read the leases often, on average."""

_STAND_IN_INTERVAL = 5.0
"""Seconds from the look of some nodes at the leaders of a large round that forms until the look of the next ones."""


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
    """Return the leaders in order: live members of the last round; if none is alive, ready nodes.

    They are the first live members of all. In a large round they are those of each third of the ranks, because nodes
    with neighbouring ranks may share a switch, and may be lost together.
    """
    count = len(state.participants)
    if not is_large(count):
        return list(islice(_live(state, view, range(count)), COUNT)) or _ready(state, view)
    size = -(-count // COUNT)
    parts = (range(start, min(start + size, count)) for start in range(0, count, size))
    firsts = (next(_live(state, view, part), None) for part in parts)
    return [first for first in firsts if first is not None] or _ready(state, view)


def leader_rank(found: Sequence[Participant | Member], state: State, own: Member, leases: int) -> int | None:
    """Return the rank of a node among the leaders that were ``found``; None if it is none of them.

    While a round forms, the first of many ready nodes are leaders too; see `stand_in_turn`.
    """
    rank = next((rank for rank, leader in enumerate(found) if leader.node == own.node), None)
    if rank is None and stand_in_turn(state, own, leases) == 0.0:
        return COUNT + _place(state, own, leases)
    return rank


def stand_in_turn(state: State, own: Member, leases: int) -> float:
    """Return how many seconds after it has become ready a node looks whether the leaders live; infinity if it need not.

    After a requeue the members of the last round may all be gone, and their leases have not expired yet. The first
    nodes of a large job look at once, as well as some of those that continue a large run, and of many nodes of small
    jobs. They may be lost too, so the others follow. ``leases`` is the number of leases that the node has seen.
    """
    ready = state.phase is Phase.JOINING and own.node_state is NodeState.READY
    large = is_large(max(own.job_nodes, 0 if own.node in state.ranks else _newcomers(state, leases)))
    return _place(state, own, leases) // COUNT * _STAND_IN_INTERVAL if ready and large else float("inf")


def watches(state: State, own: Member, nodes: int) -> bool:
    """Return whether a node outside the round that runs reads the leases as often as its members do.

    All members may be lost. About ten of the nodes that wait for a later round find that, however many ``nodes`` there
    are.
    """
    outside = state.phase is Phase.RUNNING and own.node_state is NodeState.READY and own.node not in state.ranks
    return outside and crc32(own.node.encode()) % max(1, nodes // _WATCHERS) == 0


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


def _newcomers(state: State, leases: int) -> int:
    """Return how many nodes may wait for a round that are not in the last one."""
    return max(1, len(state.participants), leases)


def _place(state: State, own: Member, leases: int) -> int:
    """Return the place of a ready node among those that look at the leaders.

    In a large job it is the order of the node. Many small jobs, or nodes without a job, have the same orders.
    """
    return own.order if is_large(own.job_nodes) else crc32(own.node.encode()) % _newcomers(state, leases)


def _live(state: State, view: View, ranks: Iterable[int]) -> Iterator[Participant]:
    """Yield the members of the last round with these ranks that are alive."""
    members = (state.participants[rank] for rank in ranks)
    return (p for p in members if p.node not in view.dead and p.node != state.just_lost)


def _ready(state: State, view: View) -> list[Participant | Member]:
    found = (s.member for s in view.nodes.values() if s.member and s.alive and s.member.round <= state.round)
    return [*nsmallest(COUNT, found, key=lambda m: (m.order, m.node))]
