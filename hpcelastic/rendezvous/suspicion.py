"""Suspicion of neighbours: what the network reports about them, checked against their leases.

A report alone proves nothing. A neighbour counts as gone if its kernel refuses connections and its lease stands still:
a node that is alive renews its lease as soon as a link to it breaks.
"""

from collections.abc import Callable, Collection

from hpcelastic.rendezvous.known import KnownState
from hpcelastic.rendezvous.observed_leases import ObservedLeases

_STANDSTILL = 0.1
"""Seconds for which the lease of a neighbour that refuses connections must not have changed."""


class Suspicions:
    """The neighbours that this node suspects, in the round that runs or has just ended, the one of ``known``."""

    def __init__(self, leases: ObservedLeases, known: KnownState, clock: Callable[[], float]) -> None:
        self._leases, self._known, self._clock = leases, known, clock
        self.silent: set[str] = set()
        """Neighbours whose heartbeats are missing. Only their leases show whether they are alive."""

        self.gone: frozenset[str] = frozenset()
        """Neighbours of which no process is left, neither of the agent nor of its workers."""

        self._suspects: dict[str, tuple[float, str | None]] = {}
        """Neighbours whose link has broken: since when, and the version of their lease at that time."""

    def link_lost(self, node: str) -> None:
        """The link to a neighbour has broken."""
        self._leases.look()
        self._suspects[node] = self._clock(), self._leases.observer.lease_version(node)

    def refused(self, node: str) -> bool:
        """The kernel of a suspect refuses connections. Return whether that proves that it is gone."""
        since, before = self._suspects[node]
        self._leases.look()
        if self._leases.observer.lease_version(node) != before:
            del self._suspects[node]
        elif self._clock() - since >= _STANDSTILL and node in self._known.state.ranks:
            self.gone |= {node}
            return True
        return False

    def suspects(self, node: str) -> bool:
        """Return whether the link to the node has broken and its lease has not been renewed since."""
        return node in self._suspects

    def keep(self, members: Collection[str]) -> None:
        """Forget what was known of nodes that are not ``members`` of the round."""
        self.gone = frozenset(node for node in self.gone if node in members)
        self.silent = {node for node in self.silent if node in members}

    def expiries(self) -> list[float]:
        """Return the seconds until the leases of silent neighbours expire, of those that have not expired yet."""
        now = self._clock()
        return [left for node in self.silent if (left := self._leases.observer.expires(node) - now) > 0]
