"""Suspicion of neighbours: what the network reports about them, checked against their leases.

A report alone proves nothing. A neighbour counts as gone if its kernel refuses connections and its lease stands still:
a node that is alive renews its lease as soon as a link to it breaks.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf

from hpcelastic.errors import StoreError
from hpcelastic.protocol.leaders import around, is_large, turn
from hpcelastic.protocol.state import Member, Phase
from hpcelastic.rendezvous.known import KnownState
from hpcelastic.rendezvous.observed_leases import EXPIRY_DELAY, ObservedLeases

_STANDSTILL = 0.1
"""Seconds for which the lease of a neighbour that refuses connections must not have changed."""

_TURN = 0.4
"""Seconds until the next neighbour of a node that seems lost looks at its lease, in a large round."""

_DEFERRAL = 300e-6
"""Seconds for each member, from the end of a round until other neighbours than the first one look, which reports the
node unless it is lost too. A leader that waits for the node lets them look earlier; see `Suspicions.probed`.
All members publish meanwhile that they have stopped, and a look waits behind them."""

_SPREAD = 1.5e-7
"""Seconds, for each pair of members, over which the readings of all nodes are spread. If the network is cut, all of
them have silent neighbours. With 10,000 nodes, each reading is 16 requests, and all of them take 15 s."""

_RECHECK, _RECHECK_PER_NODE = 5.0, 1e-3
"""Seconds until a node that was found gone, and is still a member of the last round, is looked at again; for each
member, in a large round."""

_EARLY = 2
"""Neighbours that look as soon as the link breaks, so that the second one needs only one more look."""


@dataclass(frozen=True)
class _Suspect:
    """A neighbour whose link has broken."""

    place: int
    """After how many other neighbours this node looks; see `leaders.turn`."""

    turn: float
    """The time from which this node may report that it is gone."""

    since: float = inf
    """The time of the first look at its lease since then; infinite before it."""

    version: str | None = None
    """The version of its lease at that time."""

    refused: bool = False
    """Whether its kernel has refused connections, so that looks at its lease can prove that it is gone."""

    deferred: bool = False
    """Whether ``turn`` is later because the round has ended."""

    @property
    def next_look(self) -> float:
        """The time of the next look at its lease; infinite until its kernel refuses connections."""
        if not self.refused:
            return inf
        return self.turn if self.since == inf else max(self.turn, self.since + _STANDSTILL)


@dataclass(frozen=True)
class _Proof:
    """The proof that a node is gone: its lease stood still at this ``version``."""

    version: str
    next_look: float
    """The time of the next look at its lease. If the node has renewed it, the proof was wrong."""


class Suspicions:
    """The neighbours that this node suspects, in the round that runs or has just ended, the one of ``known``."""

    def __init__(self, node: str, leases: ObservedLeases, known: KnownState, clock: Callable[[], float]) -> None:
        self._node, self._leases, self._known, self._clock = node, leases, known, clock
        self._silent: dict[str, tuple[float, float]] = {}
        """Neighbours whose heartbeats are missing, with the time at which this was told first, and that from which this
        node reads the leases. Only these show whether they are alive."""

        self._gone: dict[str, _Proof] = {}
        """Neighbours of which no process is left, neither of the agent nor of its workers."""

        self._suspects: dict[str, _Suspect] = {}

    @property
    def gone(self) -> frozenset[str]:
        """Neighbours of which no process is left, neither of the agent nor of its workers."""
        return frozenset(self._gone)

    def with_gone(self, member: Member) -> Member:
        """Return ``member``, this node, with the nodes that are gone."""
        news = sorted(self._gone.keys() - set(member.dead))
        return replace(member, dead=(*member.dead, *news)) if news else member

    @property
    def watchful(self) -> bool:
        """Whether a neighbour is silent, so that its lease must be watched."""
        return bool(self._silent)

    def became_silent(self, node: str) -> None:
        """The heartbeats of a neighbour are missing. This may be told again and again."""
        now, ranks = self._clock(), self._known.state.ranks
        spread = _SPREAD * len(ranks) * ranks.get(self._node, 0)
        due = now + turn(self._known.state, self._node, node) * _TURN + spread
        self._silent.setdefault(node, (now, due))

    def heard(self, node: str) -> None:
        """A neighbour is heard again."""
        self._silent.pop(node, None)
        self._suspects.pop(node, None)
        self._gone.pop(node, None)

    def link_lost(self, node: str) -> None:
        """The link to a neighbour has broken. A node that is no member of the round any more is not suspected."""
        if node not in self._known.state.ranks:
            return
        place = turn(self._known.state, self._node, node)
        suspect = _Suspect(place, self._clock() + place * _TURN)
        if place < _EARLY and node not in self._silent:  # if the network is cut, silence comes first
            with contextlib.suppress(StoreError):  # `confirm` looks then
                version = self._leases.observer.lease_versions([node]).get(node)
                suspect = replace(suspect, since=self._clock(), version=version)
        self._suspects[node] = suspect

    def refused(self, node: str) -> None:
        """The kernel of a suspect refuses connections."""
        self._suspects[node] = replace(self._suspects[node], refused=node not in self._gone)

    def probed(self) -> None:
        """A leader waits for a node whose other neighbours may be lost: it is the turn of this node now."""
        now = self._clock()
        self._suspects = {node: replace(s, turn=min(s.turn, now)) for node, s in self._suspects.items()}

    @property
    def pause(self) -> float:
        """Seconds until `confirm` looks again; infinite if it need not."""
        looks = [suspect.next_look for suspect in self._suspects.values()]
        looks += [proof.next_look for proof in self._gone.values()]
        return min(looks, default=inf) - self._clock()

    def confirm(self) -> bool:
        """Look at the leases of nodes of which it is time. Return whether the nodes that are gone are others now."""
        now, before = self._clock(), self.gone
        due = {node: suspect for node, suspect in self._suspects.items() if suspect.next_look <= now}
        again = {node: proof for node, proof in self._gone.items() if proof.next_look <= now}
        looked = due.keys() | again
        if not looked:
            return False
        versions, unchanged = self._leases.observer.lease_versions(looked), list[str]()
        for node, proof in again.items():
            if versions.get(node, proof.version) == proof.version:
                self._gone[node] = self._proof(proof.version)
            else:
                del self._gone[node]  # the node has renewed its lease, so it is alive
        for node, suspect in due.items():
            version = versions.get(node)
            if suspect.since == inf:
                self._suspects[node] = replace(suspect, since=self._clock(), version=version)
            elif version is None or version != suspect.version or node not in self._known.state.ranks:
                del self._suspects[node]
            else:
                self._suspects[node] = replace(suspect, refused=False)
                unchanged.append(node)
        reported = self._reported() if unchanged else frozenset()
        for node in unchanged:
            if node in reported:
                self._defer(node)
            else:
                self._gone[node] = self._proof(versions[node])
        return self.gone != before

    def _proof(self, version: str) -> _Proof:
        return _Proof(version, self._clock() + max(_RECHECK, _RECHECK_PER_NODE * len(self._known.state.ranks)))

    def _reported(self) -> frozenset[str]:
        """Return the dead nodes of which the leaders learn without this node, because a round forms and they poll."""
        if self._known.state.phase is not Phase.JOINING:
            return frozenset()
        self._leases.look()
        return self._leases.view().dead

    def suspects(self, node: str) -> bool:
        """Return whether the link to the node has broken and its lease has not been renewed since."""
        return node in self._suspects

    def keep(self) -> None:
        """Forget nodes that are not members of the round, or no neighbours, and defer looks once it has ended."""
        if not (self._suspects or self._silent or self._gone):
            return
        state, members = self._known.state, self._known.state.ranks
        near = {participant.node for participant in around(state, self._node)}
        self._gone = {node: proof for node, proof in self._gone.items() if node in members}
        self._silent = {node: times for node, times in self._silent.items() if node in near}
        self._suspects = {node: suspect for node, suspect in self._suspects.items() if node in near}
        if state.phase is Phase.JOINING:
            for node, suspect in [*self._suspects.items()]:
                if not suspect.deferred and (suspect.place or node == state.lost):
                    self._defer(node)

    def _defer(self, node: str) -> None:
        """Let this node look at a suspect later, in case that the node that reports it is lost too."""
        suspect, later = self._suspects[node], self._clock() + _DEFERRAL * len(self._known.state.ranks)
        self._suspects[node] = replace(suspect, turn=max(suspect.turn, later), deferred=True)

    def reads(self) -> Iterator[float]:
        """Yield the seconds until this node must read the leases of silent neighbours, to know their renewals and when
        they have expired."""
        now, state, looked_at = self._clock(), self._known.state, self._leases.looked_at
        # If a node hears no neighbour, the leaders know whether they live.
        alone = is_large(len(state.participants)) and len(self._silent) == len(around(state, self._node))
        for node, (since, due) in self._silent.items():
            if looked_at < since:
                yield due - now
            elif not alone and looked_at < (expires := self._leases.observer.expires(node) + EXPIRY_DELAY) < inf:
                yield expires - now
