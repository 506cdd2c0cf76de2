"""Requests to other nodes to renew their leases, which prove that they are alive."""

from collections.abc import Callable, Iterable

from hpcelastic.protocol.state import Member, Seen
from hpcelastic.rendezvous.lease_keeper import MIN_INTERVAL

_LEADER_DELAY = 0.2
"""Seconds between the first requests of one leader and those of the next."""

_ANSWER_TIME = 2 * MIN_INTERVAL
"""Seconds from a request until the answer is in the leases. Answers are not notified."""


class RenewalRequests:
    """The requests of one leader: to each node whose renewal it has not seen, every ``interval`` seconds.

    The first leader sends them at once. The others send them only if those have had no effect, one after the other.
    """

    def __init__(self, interval: float, clock: Callable[[], float]) -> None:
        self._interval, self._clock = interval, clock
        self._sent: dict[str, float] = {}
        """The time of the last request to each node, or of the first chance for one."""

        self._last_sent = float("-inf")

    @property
    def until_answers(self) -> float:
        """Seconds until the answers to the last requests can be read; negative after that."""
        return self._last_sent + _ANSWER_TIME - self._clock()

    def due(self, nodes: Iterable[Seen], rank: int) -> list[Member]:
        """Return the nodes that the leader of this ``rank`` requests now."""
        now = self._clock()
        unproved = [seen.member for seen in nodes if seen.member and not seen.proved and seen.alive]
        before = now - self._interval + _LEADER_DELAY * rank
        found = [m for m in unproved if now - self._sent.setdefault(m.node, before) >= self._interval]
        self._sent.update((member.node, now) for member in found)
        if found:
            self._last_sent = now
        return found
