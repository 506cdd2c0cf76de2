"""The schedule by which a node polls the register and the leases.

Pure but for its clock. A poll costs a listing of the register, which is short. A node that has to decide something also
reads the leases, a listing with an entry for every node. If every node read them as often as it likes, the load would
grow with the square of the number of nodes. So a few leaders read them often, and the other nodes read them on their
own less often the more nodes there are. All nodes are notified of a new version, because all of them must follow it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hpcelastic.protocol.settings import RendezvousSettings
from hpcelastic.protocol.spread import part_of_interval, until_moment
from hpcelastic.protocol.state import Phase

_MAX_POLL_RATE = 128
"""Polls a second of all nodes together, without the polls of the leaders and those after a notification, and before
the intervals are shortened to spread them."""

_MAX_LEASE_RATE = 128 * 128
"""Leases a second that all nodes together read, without the leaders."""

_LEADER_DELAY = 0.2
"""Seconds between the polls of one leader and the next for the same reason, at least."""

_LEADER_DELAY_PER_NODE = 1e-4
"""The same for each node. If all nodes publish at once, the first leader reads that only after their requests."""

_MIN_INTERVAL = 0.01
"""Seconds between two polls at least, however many notifications arrive."""

_MAX_BACK_OFF = 2.0
"""Seconds for which a leader waits at most because its last poll took long. After a pause of the filesystem of a minute
it must soon see which leases are not renewed any more."""


@dataclass(frozen=True)
class PollResult:
    """The part of a poll's result that decides when the node polls again."""

    phase: Phase
    rank: int | None
    """The node's place among the leaders; None if it is no leader."""

    nodes: int
    """The number of nodes that have a lease."""

    network_healthy: bool
    """True if notifications work, so that no news can be missed."""

    urgent: bool
    """True while a neighbour is silent, whose lease must be watched, or while this node cannot follow the state yet."""


class PollSchedule:
    """The schedule of one node's polls, on ``clock``, in seconds.

    ``node`` has times of its own; see `hpcelastic.protocol.spread`.
    """

    def __init__(self, settings: RendezvousSettings, clock: Callable[[], float], node: str = "") -> None:
        self._poll, self._node, self._part = settings.poll, node, part_of_interval(node)
        self.lease = settings.first_lease
        """The duration of this node's lease, in seconds."""

        self._clock = clock
        self._regular = self._next_read = self._turn = float("inf")
        self._notified = self._polled = self._earliest = float("-inf")
        self._result: PollResult | None = None

    @property
    def poll_due(self) -> bool:
        """True if it is time to poll."""
        return self.pause <= 0

    @property
    def regular_poll_due(self) -> bool:
        """True if it is time to poll, also without any notification."""
        return self._clock() >= max(self._regular, self._earliest)

    @property
    def read_due(self) -> bool:
        """True if it is time to read the leases as well."""
        return self._clock() >= min(self._next_read, self._turn)

    @property
    def pause(self) -> float:
        """Seconds until the next poll."""
        return max(min(self._regular, self._next_read, self._turn, self._notified), self._earliest) - self._clock()

    def record_poll(self, started: float, result: PollResult, read: bool) -> None:
        """Schedule the next poll after one that has ``read`` the leases, or has not.

        To read them and to decide has taken the time from ``started`` to now. The next poll waits as long. Only the
        first leader does not, if that time was short: all nodes may wait for it to see the last of them.

        When a round ends, all nodes but the first leader put off a reading that was due: it would come together with
        that of the first leader, or delay the beginning of the next round on this node.
        """
        now = self._clock()
        took = min(now - started, _MAX_BACK_OFF) if read else 0.0
        if result.phase is Phase.JOINING and result.rank == 0 and took < self._poll:
            took = 0.0
        ended = result.phase is Phase.JOINING and self._result is not None and self._result.phase is Phase.RUNNING
        done = read or (ended and result.rank != 0)
        self._result, self._polled, self._notified = result, now, float("inf")
        self._earliest = now + max(_MIN_INTERVAL, took)
        self._regular = now + self._poll_interval(result)
        self._next_read = min(now + self._until_read(result, now), float("inf") if done else self._next_read)

    def record_caught_up(self) -> None:
        """The node follows the state now, so that the next poll is no longer urgent."""
        if self._result is not None and self._result.urgent:
            self._result = replace(self._result, urgent=False)
            self._regular = self._polled + self._poll_interval(self._result)

    def record_notification(self, newer: bool) -> None:
        """Schedule a poll after a notification: of a ``newer`` version, or of news that only leaders need to read."""
        now, result = self._clock(), self._result
        if newer or result is None:
            self._notified = now
            self._earliest = min(self._earliest, self._polled + _MIN_INTERVAL)
        elif result.rank is not None:
            due = now + _leader_delay(result.rank, result.nodes)
            self._notified, self._next_read = min(self._notified, due), min(self._next_read, due)
        else:
            self._next_read = min(self._next_read, max(now, self._polled + self._shared_read_interval(result)))

    def poll_within(self, seconds: float) -> None:
        """Poll again after ``seconds`` at the latest."""
        self._regular = min(self._regular, self._clock() + seconds)

    def read_within(self, seconds: float) -> None:
        """Read the leases again after ``seconds`` at the latest."""
        self._next_read = min(self._next_read, self._clock() + seconds)

    def read_at_turn(self, seconds: float) -> None:
        """Read the leases after ``seconds``; not at a turn if that is infinite. This replaces the turn before."""
        self._turn = self._clock() + seconds

    def _poll_interval(self, result: PollResult) -> float:
        if result.urgent:
            return self._poll
        if result.phase is Phase.JOINING and result.rank is not None:
            return max(self._poll, _leader_delay(result.rank, result.nodes))
        if result.phase is not Phase.RUNNING or not result.network_healthy:
            return self._shared_poll_interval(result)
        # The links report the death of a process. The leases are read to know when a node that hangs has last renewed
        # its own; a few readers are enough for that. The only node of a run polls for requests that the network loses.
        if result.rank is None:
            return max(2 * self.lease * self._part, self._shared_poll_interval(result))
        return self.lease / (6 if result.nodes > 1 else 3)

    def _until_read(self, result: PollResult, now: float) -> float:
        """Return the seconds until the leases are read.

        The nodes that are no leaders read them one after the other. If all leaders are lost, one of the others reads
        them after a part of the interval: the more others are left, the sooner.
        """
        interval, shared = self._poll_interval(result), self._shared_read_interval(result)
        if result.rank is not None or shared <= interval:
            return interval
        return interval + until_moment(self._node, now + interval, shared)

    def _shared_poll_interval(self, result: PollResult) -> float:
        return max(self._poll, result.nodes / _MAX_POLL_RATE * self._part)

    def _shared_read_interval(self, result: PollResult) -> float:
        return max(self._poll, result.nodes**2 / _MAX_LEASE_RATE)


def _leader_delay(rank: int, nodes: int) -> float:
    """Return the seconds by which the leader of this rank follows the first one."""
    return rank * max(_LEADER_DELAY, nodes * _LEADER_DELAY_PER_NODE)
