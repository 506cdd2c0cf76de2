"""Cuts in the network of a round: pairs of nodes that do not reach each other although both are alive.

Pure. Each node tells which of the others it does not reach. The round is whole again without the fewest nodes that are
in all cut pairs together (a minimum vertex cover).
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

_MAX_PAIRS = 256
"""Among more pairs the fewest nodes are not searched: the node with most cuts is chosen at each step. The search is
recursive, and its depth grows with the number of pairs."""

_MAX_TRIES = 10_000
"""Steps of the search. After them the other nodes are chosen in the same way."""


class Cuts:
    """The cut ``pairs`` of the members ``nodes``, which are in the order of their ranks."""

    def __init__(self, nodes: Sequence[str], pairs: Iterable[tuple[str, str]]) -> None:
        self._place = {node: place for place, node in enumerate(nodes)}
        distinct = {frozenset(pair) for pair in pairs if pair[0] != pair[1]}
        self.pairs = sorted((self._sorted(pair) for pair in distinct if pair <= self._place.keys()), key=self._places)
        """Each pair in the order of ranks."""

        self._total = Counter(node for pair in self.pairs for node in pair)
        self._tries = 0

    def fewest(self) -> tuple[str, ...]:
        """Return the fewest nodes without which no pair is cut, those with most cuts if there is a choice.

        Of many pairs, return few such nodes; see `_MAX_PAIRS`.
        """
        if len(self.pairs) > _MAX_PAIRS:
            return self._sorted(self._with_most_cuts(self.pairs))
        return self._sorted(self._cover(self.pairs, len(self._place)) or ())

    def describe(self) -> str:
        """Describe the cut pairs in a line."""
        shown = [f"{one} and {other}" for one, other in self.pairs[:4]]
        more = f", and {len(self.pairs) - 4} more pairs" if len(self.pairs) > 4 else ""
        return f"the connection between {', '.join(shown)}{more} is cut, while all nodes reach the run's directory"

    def _cover(self, pairs: Sequence[tuple[str, ...]], limit: int) -> tuple[str, ...] | None:
        """Return the fewest nodes that are in all ``pairs``; None if there are not fewer than ``limit``."""
        if not pairs:
            return () if limit > 0 else None
        if limit <= 1:
            return None
        self._tries += 1
        counts = Counter(node for pair in pairs for node in pair)
        worst = max(counts, key=lambda node: (counts[node], self._total[node], self._place[node]))
        if counts[worst] == 1 or self._tries >= _MAX_TRIES:  # one node of each pair is enough, or no time is left
            chosen = self._with_most_cuts(pairs)
            return chosen if len(chosen) < limit else None
        best = self._with((worst,), pairs, limit)
        others = tuple(other for pair in pairs if worst in pair for other in pair if other != worst)
        found = self._with(others, pairs, limit if best is None else len(best))
        return best if found is None else found

    def _with(self, nodes: tuple[str, ...], pairs: Sequence[tuple[str, ...]], limit: int) -> tuple[str, ...] | None:
        chosen = frozenset(nodes)
        found = self._cover([pair for pair in pairs if chosen.isdisjoint(pair)], limit - len(nodes))
        return None if found is None else (*nodes, *found)

    def _with_most_cuts(self, pairs: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
        """Return nodes that are in all ``pairs``: one after the other that with most cuts to those that are left."""
        others: dict[str, set[str]] = {}
        for one, other in pairs:
            others.setdefault(one, set()).add(other)
            others.setdefault(other, set()).add(one)
        heap = [self._urgency(node, len(cut)) for node, cut in others.items()]
        heapq.heapify(heap)
        chosen = []
        while heap:
            count, _, _, node = heapq.heappop(heap)
            if -count != len(others[node]) or not others[node]:  # a newer entry tells its cuts, or it has none
                continue
            chosen.append(node)
            for other in others[node]:
                others[other].remove(node)
                heapq.heappush(heap, self._urgency(other, len(others[other])))
            others[node] = set()
        return tuple(chosen)

    def _urgency(self, node: str, cuts: int) -> tuple[int, int, int, str]:
        """Return a key by which the node with most cuts comes first."""
        return -cuts, -self._total[node], -self._place[node], node

    def _sorted(self, nodes: Collection[str]) -> tuple[str, ...]:
        return tuple(sorted(nodes, key=self._place.__getitem__))

    def _places(self, nodes: Collection[str]) -> list[int]:
        return [self._place[node] for node in nodes]
