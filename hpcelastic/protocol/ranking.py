"""The choice of the members of a round among the ready nodes, and their ranks.

Pure. Two goals conflict. A changed rank makes what its node has stored for it useless (a cache of the data, a shard in
memory, a person's habit). A ring of all ranks costs, at every step, one more crossing for each time that it returns to
a switch. So:

* A member of the last round keeps its place. A newcomer takes the place of a lost node: one of the same size, so that
  no other rank changes, and of those the nearest.
* If the round shrinks, the remaining members move up. If it grows, ranks change anyway, and a newcomer is placed after
  the last node of the nearest switch that has members. The order of the remaining members never changes.
* If no member remains, nodes are sorted by switch, then by SLURM's order, then by name.
"""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import product
from typing import TypeAlias, TypeVar

from hpcelastic.protocol.rows import column
from hpcelastic.protocol.state import Member, Participant, name_of

K = TypeVar("K")
Path: TypeAlias = tuple[str, ...]
"""The switches above a node, the top one first."""


def ranked(before: Sequence[Participant], ready: Iterable[Member], max_nodes: int) -> tuple[list[Member], list[Member]]:
    """Return the members of the next round by rank, at most ``max_nodes``, and the other ready nodes.

    ``ready`` are the ready nodes, each name once; ``before`` are the members of the last round, by rank.
    """
    found = list(ready)
    here = {m.name: m for m in found}
    seats = [here.get(name_of(node)) for node in column(before, "node")]
    staying = [member for member in seats if member]
    kept, surplus = staying[:max_nodes], staying[max_nodes:]
    if surplus or not kept:
        nodes = {m.node for m in kept}
        seats = [member if member and member.node in nodes else None for member in seats] if kept else []
    room = max_nodes - len(kept)
    newcomers = in_order(_without(staying, found) if len(staying) < len(found) else [])
    replacements = _replacements(before, seats, newcomers, room)
    inside = [member for seat, holder in enumerate(seats) if (member := holder or replacements.get(seat))]
    newcomers = _without(replacements.values(), newcomers)
    if not newcomers:
        return inside, surplus
    near = {prefix for m in inside for prefix in prefixes(m)}
    others = _without(chosen_newcomers(newcomers, room - len(replacements), near), newcomers)
    return inserted(inside, _without(others, newcomers)), [*surplus, *others]


def _without(excluded: Iterable[Member], members: Iterable[Member]) -> list[Member]:
    nodes = {m.node for m in excluded}
    return [m for m in members if m.node not in nodes]


def in_order(members: Iterable[Member]) -> list[Member]:
    """Sort by switch, then by SLURM's order within one job, then by name. Orders of several jobs are not comparable."""
    found = list(members)
    one_job = len({m.job for m in found}) == 1
    return sorted(
        found, key=lambda m: ([_natural(switch) for switch in _path(m)], m.order if one_job else 0, _natural(m.name))
    )


def _replacements(
    before: Sequence[Participant], seats: Sequence[Member | None], newcomers: Collection[Member], room: int
) -> dict[int, Member]:
    """Return the newcomers that take the seats of lost nodes, by seat."""
    lost = [seat for seat, member in enumerate(seats) if member is None]
    found: dict[int, Member] = {}
    deepest = max((len(_path(m)) for m in newcomers), default=0)
    for same_size, depth in product((True, False), range(deepest, -1, -1)):
        similarity = partial(_similarity, same_size=same_size, depth=depth)
        waiting = _grouped(_without(found.values(), newcomers), similarity)
        for seat in lost:
            similar = waiting.get(similarity(before[seat]))
            if similar and seat not in found and len(found) < room:
                found[seat] = similar.popleft()
    return found


def chosen_newcomers(newcomers: list[Member], room: int, near: Collection[Path], depth: int = 0) -> list[Member]:
    """Choose ``room`` newcomers under as few switches as possible, first those under a switch of ``near``."""
    if len(newcomers) <= room or all(len(_path(m)) <= depth for m in newcomers):
        return newcomers[:room]
    groups = _grouped(newcomers, lambda m: _path(m)[: depth + 1])
    found: list[Member] = []
    while len(found) < room:
        left = room - len(found)
        # The smallest group that suffices, so that larger groups stay complete; otherwise the largest group.
        best = min(groups, key=lambda p: (p not in near, len(groups[p]) < left, abs(len(groups[p]) - left)))
        found += chosen_newcomers(list(groups.pop(best)), left, near, depth + 1)
    return found


def inserted(inside: list[Member], newcomers: Iterable[Member]) -> list[Member]:
    """Return the members, with each newcomer after the last of the members nearest to it."""
    last = {prefix: seat for seat, member in enumerate(inside) for prefix in prefixes(member)}
    behind = defaultdict(list)
    for member in newcomers:
        nearest = next((prefix for prefix in prefixes(member) if prefix in last), ())
        behind[last.get(nearest, len(inside) - 1)].append((-len(nearest), member))
    followers = {seat: [m for _, m in sorted(group, key=lambda pair: pair[0])] for seat, group in behind.items()}
    return [
        *followers.get(-1, []),
        *(m for seat, member in enumerate(inside) for m in (member, *followers.get(seat, []))),
    ]


def _path(node: Member | Participant) -> Path:
    return tuple(node.topology.split(".")) if node.topology else ()


def prefixes(node: Member | Participant) -> list[Path]:
    """Return the path of each switch above the node, the nearest first."""
    path = _path(node)
    return [path[:depth] for depth in range(len(path), 0, -1)]


def _similarity(node: Member | Participant, same_size: bool, depth: int) -> tuple[int, Path]:
    return node.local_world_size if same_size else 0, _path(node)[:depth]


def _grouped(members: Iterable[Member], key: Callable[[Member], K]) -> dict[K, deque[Member]]:
    groups: defaultdict[K, deque[Member]] = defaultdict(deque)
    for member in members:
        groups[key(member)].append(member)
    return groups


def _natural(name: str) -> tuple[list[str | int], str]:
    """Return a sort key by which n2 comes before n10."""
    return [int(part) if part.isdecimal() else part for part in re.split("([0-9]+)", name)], name
