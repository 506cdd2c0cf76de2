"""Who acts first.

Pure. Any node may carry any decision out, and if all tried at once, each would read what all have said: a load that
grows with the square of their number. So those who have something to say tell the first few, who look at once, one
after the other; the others look now and then, in case that none of these is left.
"""

from heapq import nsmallest
from itertools import islice

from hpcelastic.protocol.state import Member, Participant, State, View

COUNT = 3


def leaders(state: State, view: View) -> list[Participant | Member]:
    """The nodes that look first, in order: members of the last round, and where none of them lives, those ready."""
    members = (p for p in state.participants if p.node not in view.dead)
    return list(islice(members, COUNT)) or _ready(state, view)


def _ready(state: State, view: View) -> list[Participant | Member]:
    found = (s.member for s in view.nodes.values() if s.member and s.alive and s.member.round <= state.round)
    return [*nsmallest(COUNT, found, key=lambda m: (m.order, m.node))]
