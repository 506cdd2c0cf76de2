"""Groups of nodes that stay together: under one switch, or in one block of SLURM's topology.

Pure. With ``nodes.within``, ranks are made of groups of ``nodes.multiple`` nodes at one place: the first so many nodes
are a group, and so on. A place can have several groups. Between rounds:

* A group of which no node was lost keeps its ranks and its order.
* A group that has lost nodes gets others at its place: nodes of groups there that cannot be whole, then newcomers.
* A group that cannot be whole is dissolved. Its nodes stand by if no other group at their place needs them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from hpcelastic.protocol.ranking import chosen_newcomers, in_order, inserted, prefixes
from hpcelastic.protocol.state import Member, Participant

_Seats = list[Member | None]


def ranked_groups(
    before: Sequence[Participant], ready: Iterable[Member], max_nodes: int, size: int
) -> tuple[list[Member], list[Member]]:
    """Return the members of the next round by rank, at most ``max_nodes``, and the other ready nodes.

    As `ranking.ranked`, for groups of ``size`` nodes at one place.
    """
    ordered = in_order(ready)
    before = before[: len(before) - len(before) % size]  # the size of groups may have been another one
    here = {m.name: m for m in ordered}
    staying = [here[p.name] for p in before if p.name in here]
    groups = [_seats(before[start : start + size], here) for start in range(0, len(before), size)]
    places = [p.topology for p in before[::size]]
    kept = _kept(groups, places, ordered, max_nodes, size)
    seated = {m.node for index in kept for m in groups[index] if m}
    pool = {m.node: m for m in (*staying, *ordered) if m.node not in seated}
    there: dict[str, list[Member]] = {}
    for member in pool.values():
        there.setdefault(member.topology, []).append(member)
    inside: list[Member] = []
    for index in kept:
        for seat, stays in enumerate(groups[index]):
            member = stays or _successor(before[index * size + seat], there[places[index]])
            pool.pop(member.node, None)
            inside.append(member)
    others = [m for members in there.values() for m in members[: len(members) - len(members) % size]]
    near = {prefix for m in inside for prefix in prefixes(m)}
    chosen = {m.node for m in chosen_newcomers(others, max_nodes - len(inside), near)}
    members = inserted(inside, [m for m in ordered if m.node in chosen])
    return members, [m for m in pool.values() if m.node not in chosen]


def _seats(group: Sequence[Participant], here: dict[str, Member]) -> _Seats:
    """Return the nodes of a group that are still there, and at their place; None for each other one."""
    found = (here.get(p.name) for p in group)
    return [m if m and m.topology == group[0].topology else None for m in found]


def _kept(
    groups: Sequence[_Seats], places: Sequence[str], ready: Collection[Member], max_nodes: int, size: int
) -> list[int]:
    """Return the indices of the groups that stay, in their order. Those that miss the fewest nodes come first."""
    fullest = sorted(range(len(groups)), key=lambda index: (groups[index].count(None), index))
    room = {place: count // size for place, count in Counter(m.topology for m in ready).items()}
    kept: list[int] = []
    for index in fullest:
        if room.get(places[index]) and len(kept) < max_nodes // size:
            room[places[index]] -= 1
            kept.append(index)
    return sorted(kept)


def _successor(lost: Participant, there: list[Member]) -> Member:
    """Take the first node out of ``there``, one with as many workers as the lost one if there is one."""
    fits = (i for i, m in enumerate(there) if m.local_world_size == lost.local_world_size)
    return there.pop(next(fits, 0))
