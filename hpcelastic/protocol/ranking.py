"""Which of the ready nodes take part in a round, and with which ranks.

Pure. Two wishes pull apart. A rank that moves costs what its node has kept for it (a cache of the data, a shard in
memory, a person's habit); a ring of all ranks costs, at every step, one crossing more for each time that it comes back
to a switch. So:

* Who was in the last round keeps its seat, and a newcomer takes the seat of a node that was lost: one as large, so that
  nobody's rank moves, and of those the nearest.
* Where the round shrinks, the others close up; where it grows, the ranks are dealt anew anyway, and a newcomer goes
  behind the last node of the nearest switch that is there already. The order of those who stay never changes.
* Where nobody stays there is nothing to keep: nodes go by switch, then by SLURM's order, then by name.
"""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import product
from typing import TypeAlias, TypeVar

from hpcelastic.protocol.state import Member, Participant

K = TypeVar("K")
Path: TypeAlias = tuple[str, ...]
"""The switches above a node, the most significant first."""


def ranked(before: Sequence[Participant], ready: Iterable[Member], most: int) -> tuple[list[Member], list[Member]]:
    """Of those ``ready``, each name once, the members of the next round by rank, ``most`` of them; and the others.

    ``before`` are the members of the last round, by rank.
    """
    ordered = _in_order(ready)
    here = {m.name: m for m in ordered}
    staying = [here[p.name] for p in before if p.name in here]
    kept = {m.name: m for m in staying[:most]}
    room = most - len(kept)
    seats = [kept.get(p.name) for p in before] if kept else []
    comers = _without(staying, ordered)
    successors = _successors(before, seats, comers, room)
    inside = [member for seat, who in enumerate(seats) if (member := who or successors.get(seat))]
    comers = _without(successors.values(), comers)
    near = {prefix for m in inside for prefix in _prefixes(m)}
    others = _without(_picked(comers, room - len(successors), near), comers)
    return _grown(inside, _without(others, comers)), [*staying[most:], *others]


def _without(some: Iterable[Member], members: Iterable[Member]) -> list[Member]:
    gone = {m.node for m in some}
    return [m for m in members if m.node not in gone]


def _in_order(members: Iterable[Member]) -> list[Member]:
    """By switch, then by SLURM's order; by name where several jobs each have an order of their own."""
    found = list(members)
    one_job = len({m.job for m in found}) == 1
    return sorted(
        found, key=lambda m: ([_natural(switch) for switch in _path(m)], m.order if one_job else 0, _natural(m.name))
    )


def _successors(
    before: Sequence[Participant], seats: Sequence[Member | None], comers: Collection[Member], room: int
) -> dict[int, Member]:
    """Who takes the seat of a lost node, by seat."""
    lost = [seat for seat, member in enumerate(seats) if member is None]
    found: dict[int, Member] = {}
    deepest = max((len(_path(m)) for m in comers), default=0)
    for as_large, depth in product((True, False), range(deepest, -1, -1)):
        likeness = partial(_likeness, as_large=as_large, depth=depth)
        waiting = _grouped(_without(found.values(), comers), likeness)
        for seat in lost:
            alike = waiting.get(likeness(before[seat]))
            if alike and seat not in found and len(found) < room:
                found[seat] = alike.popleft()
    return found


def _picked(comers: list[Member], room: int, near: Collection[Path], depth: int = 0) -> list[Member]:
    """As many of them as there is room for, under as few switches as may be; first those under a switch of ``near``."""
    if len(comers) <= room or all(len(_path(m)) <= depth for m in comers):
        return comers[:room]
    groups = _grouped(comers, lambda m: _path(m)[: depth + 1])
    found: list[Member] = []
    while len(found) < room:
        left = room - len(found)
        # The smallest group that is enough, so that larger ones stay whole; else the largest.
        best = min(groups, key=lambda p: (p not in near, len(groups[p]) < left, abs(len(groups[p]) - left)))
        found += _picked(list(groups.pop(best)), left, near, depth + 1)
    return found


def _grown(inside: list[Member], comers: Iterable[Member]) -> list[Member]:
    """The members with each newcomer behind the last of those nearest to it."""
    last = {prefix: seat for seat, member in enumerate(inside) for prefix in _prefixes(member)}
    behind = defaultdict(list)
    for member in comers:
        nearest = next((prefix for prefix in _prefixes(member) if prefix in last), ())
        behind[last.get(nearest, len(inside) - 1)].append((-len(nearest), member))
    followers = {seat: [m for _, m in sorted(group, key=lambda pair: pair[0])] for seat, group in behind.items()}
    return [
        *followers.get(-1, []),
        *(m for seat, member in enumerate(inside) for m in (member, *followers.get(seat, []))),
    ]


def _path(node: Member | Participant) -> Path:
    return tuple(node.topology.split(".")) if node.topology else ()


def _prefixes(node: Member | Participant) -> list[Path]:
    """The ways to each switch above the node, the nearest first."""
    path = _path(node)
    return [path[:depth] for depth in range(len(path), 0, -1)]


def _likeness(node: Member | Participant, as_large: bool, depth: int) -> tuple[int, Path]:
    return node.local_world_size if as_large else 0, _path(node)[:depth]


def _grouped(members: Iterable[Member], key: Callable[[Member], K]) -> dict[K, deque[Member]]:
    groups: defaultdict[K, deque[Member]] = defaultdict(deque)
    for member in members:
        groups[key(member)].append(member)
    return groups


def _natural(name: str) -> tuple[list[str | int], str]:
    """A key by which n2 comes before n10."""
    return [int(part) if part.isdecimal() else part for part in re.split("([0-9]+)", name)], name
