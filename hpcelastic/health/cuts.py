"""Cuts in the network of a round: pairs of nodes that do not reach each other although both are alive.

Pure. Each node tells which of the others it does not reach. The round is whole again without the fewest nodes that are
in all cut pairs together (a minimum vertex cover).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

_MAX_TRIES = 10_000
"""Steps of the search for the fewest nodes. Beyond them the node with most cuts is chosen at each step."""


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
        """Return the fewest nodes without which no pair is cut; those with most cuts if there is a choice."""
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
        best = self._with((worst,), pairs, limit)
        if counts[worst] > 1 and self._tries < _MAX_TRIES:  # else one node of each pair is enough
            others = tuple(other for pair in pairs if worst in pair for other in pair if other != worst)
            found = self._with(others, pairs, limit if best is None else len(best))
            best = best if found is None else found
        return best

    def _with(self, nodes: tuple[str, ...], pairs: Sequence[tuple[str, ...]], limit: int) -> tuple[str, ...] | None:
        left = [pair for pair in pairs if not {*pair} & {*nodes}]
        found = self._cover(left, limit - len(nodes))
        return None if found is None else (*nodes, *found)

    def _sorted(self, nodes: Collection[str]) -> tuple[str, ...]:
        return tuple(sorted(nodes, key=self._place.__getitem__))

    def _places(self, nodes: Collection[str]) -> list[int]:
        return [self._place[node] for node in nodes]
