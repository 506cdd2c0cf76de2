"""Probes: the requests of leaders that wait for the renewal of a lease, or for a node that has not stopped its workers.

A node that is probed renews its lease, which proves that it is alive. If a node of a large round was lost, its first
neighbour reports that. The first one may be lost too, so a leader probes the others. They look at the node then.
"""

from collections.abc import Callable, Collection, Mapping

from hpcelastic.protocol.leaders import around, is_large
from hpcelastic.protocol.state import Member, Participant, Seen, State
from hpcelastic.rendezvous.lease_keeper import MIN_INTERVAL

_LEADER_DELAY = 0.2
"""Seconds between the first probes of one leader and those of the next."""

_ANSWER_TIME = 2 * MIN_INTERVAL
"""Seconds from a probe until the renewal is in the leases, and for which a node may still be about to publish that it
has stopped its workers. The former is not notified."""

_FEW = 64
"""The number of nodes with workers up to which their neighbours are probed. If there are more, most of them are about
to publish that they have stopped."""


class Probes:
    """The probes of one leader because of each node that a round waits for, every ``interval`` seconds.

    The first leader sends them at once. The others send them only if those have had no effect, one after the other.
    """

    def __init__(self, interval: float, clock: Callable[[], float]) -> None:
        self._interval, self._clock = interval, clock
        self._due: dict[str, float] = {}
        """The time of the next probe because of each node that the round waits for."""

        self._awaited = float("-inf")
        """The time at which the leader has last begun to wait for something that is not notified."""

    @property
    def until_answers(self) -> float:
        """Seconds until the leases have to be read for what is not notified; negative after that."""
        return self._awaited + _ANSWER_TIME - self._clock()

    def due(
        self, state: State, nodes: Mapping[str, Seen], busy: Collection[str], rank: int
    ) -> list[Member | Participant]:
        """Return the nodes that the leader of this ``rank`` probes now.

        These are the ``nodes`` whose renewal it has not seen, and the neighbours of ``busy`` ones, which have not
        stopped their workers.
        """
        now = self._clock()
        unproved = {n: [seen.member] for n, seen in nodes.items() if seen.member and not seen.proved and seen.alive}
        few = len(busy) <= _FEW and is_large(len(state.participants))
        neighbours = {node: around(state, node) for node in busy} if few else {}
        first = now + _LEADER_DELAY * rank
        times = {**dict.fromkeys(neighbours, first + _ANSWER_TIME), **dict.fromkeys(unproved, first)}
        new = neighbours.keys() - self._due.keys()
        self._due = {node: self._due.get(node, time) for node, time in times.items()}
        due = [node for node, time in self._due.items() if time <= now]
        self._due |= dict.fromkeys(due, now + self._interval)
        if new or not unproved.keys().isdisjoint(due):
            self._awaited = now
        found = [target for node in due for target in (*unproved.get(node, ()), *neighbours.get(node, ()))]
        return list({target.node: target for target in found}.values())
