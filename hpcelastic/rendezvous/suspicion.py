"""Suspicion of neighbours: what the network reports about them, checked against their leases.

A report alone proves nothing. A neighbour counts as gone if its kernel refuses connections and its lease stands still:
a node that is alive renews its lease as soon as a link to it breaks.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hpcelastic.protocol.leaders import turn
from hpcelastic.protocol.state import Phase
from hpcelastic.rendezvous.known import KnownState
from hpcelastic.rendezvous.observed_leases import ObservedLeases

_STANDSTILL = 0.1
"""Seconds for which the lease of a neighbour that refuses connections must not have changed."""

_TURN = 0.4
"""Seconds until the next neighbour of a node that seems lost looks at its lease, in a large round."""

_DEFERRAL = 75e-6
"""Seconds for each member, from the end of a round until other neighbours than the first one look, which reports the
node unless it is lost too. All members publish meanwhile that they have stopped, and a look waits behind them."""

_EARLY = 2
"""Neighbours that look as soon as the link breaks, so that the second one needs only one more look."""


@dataclass(frozen=True)
class _Suspect:
    """A neighbour whose link has broken."""

    place: int
    """After how many other neighbours this node looks; see `leaders.turn`."""

    turn: float
    """The time from which this node may report that it is gone."""

    since: float | None = None
    """The time of the first look at its lease since then; None before it."""

    version: str | None = None
    """The version of its lease at that time."""

    deferred: bool = False
    """Whether ``turn`` is later because the round has ended."""


class Suspicions:
    """The neighbours that this node suspects, in the round that runs or has just ended, the one of ``known``."""

    def __init__(self, node: str, leases: ObservedLeases, known: KnownState, clock: Callable[[], float]) -> None:
        self._node, self._leases, self._known, self._clock = node, leases, known, clock
        self.silent: set[str] = set()
        """Neighbours whose heartbeats are missing. Only their leases show whether they are alive."""

        self.gone: frozenset[str] = frozenset()
        """Neighbours of which no process is left, neither of the agent nor of its workers."""

        self._suspects: dict[str, _Suspect] = {}

    def link_lost(self, node: str) -> None:
        """The link to a neighbour has broken."""
        place = turn(self._known.state, self._node, node)
        self._suspects[node] = _Suspect(place, self._clock() + place * _TURN)
        if place < _EARLY:
            self._look(node)

    def refused(self, node: str) -> bool:
        """The kernel of a suspect refuses connections. Return whether that proves now that it is gone."""
        suspect, now = self._suspects[node], self._clock()
        if node in self.gone or now < suspect.turn:
            return False
        if suspect.since is None:
            self._look(node)
            return False
        self._leases.look()
        if self._leases.observer.lease_version(node) != suspect.version:
            del self._suspects[node]
        elif self._clock() - suspect.since >= _STANDSTILL and node in self._known.state.ranks:
            self.gone |= {node}
            return True
        return False

    def _look(self, node: str) -> None:
        """Look at the lease of a suspect for the first time."""
        self._leases.look()
        version = self._leases.observer.lease_version(node)
        self._suspects[node] = replace(self._suspects[node], since=self._clock(), version=version)

    def suspects(self, node: str) -> bool:
        """Return whether the link to the node has broken and its lease has not been renewed since."""
        return node in self._suspects

    def keep(self) -> None:
        """Forget what was known of nodes that are not members of the round, and defer looks once it has ended."""
        state, members = self._known.state, self._known.state.ranks
        self.gone = frozenset(node for node in self.gone if node in members)
        self.silent = {node for node in self.silent if node in members}
        self._suspects = {node: suspect for node, suspect in self._suspects.items() if node in members}
        if state.phase is Phase.JOINING:
            for node, suspect in self._suspects.items():
                if not suspect.deferred and (suspect.place or node == state.lost):
                    later = max(suspect.turn, self._clock() + _DEFERRAL * len(members))
                    self._suspects[node] = replace(suspect, turn=later, deferred=True)

    def expiries(self) -> list[float]:
        """Return the seconds until the leases of silent neighbours expire, of those that have not expired yet."""
        now = self._clock()
        return [left for node in self.silent if (left := self._leases.observer.expires(node) - now) > 0]
