"""The leaders: the few nodes that act first.

Pure. Any node may execute any decision. If all nodes tried at once, each would read all leases, a load that grows with
the square of their number. So a node that publishes something notifies the leaders, which poll at once, one after the
other. The other nodes poll now and then, in case that no leader is left.
"""

from heapq import nsmallest
from itertools import islice

from hpcelastic.protocol.state import Member, Participant, State, View

COUNT = 3
"""The number of leaders, if there are enough nodes."""

_LARGE = 64
"""Nodes of a job from which on its nodes do not look for the first ones all at once."""

_LOOK_INTERVAL = 0.5
"""Seconds from the look of some nodes of a large job until the next ones look."""


def first_look(member: Member) -> float:
    """Return how long a node that has just become ready waits before it looks for others.

    In a large job that is a long listing for each node. So its first nodes look at once, and the others one after the
    other, in case that those are lost and no round has formed meanwhile.
    """
    return member.order // COUNT * _LOOK_INTERVAL if member.job_nodes > _LARGE else 0.0


def leaders(state: State, view: View) -> list[Participant | Member]:
    """Return the leaders in order: the first live members of the last round; if none is alive, ready nodes."""
    members = (p for p in state.participants if p.node not in view.dead)
    return list(islice(members, COUNT)) or _ready(state, view)


def _ready(state: State, view: View) -> list[Participant | Member]:
    found = (s.member for s in view.nodes.values() if s.member and s.alive and s.member.round <= state.round)
    return [*nsmallest(COUNT, found, key=lambda m: (m.order, m.node))]
