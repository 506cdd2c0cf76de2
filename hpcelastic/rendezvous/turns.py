"""The turns of a node among many that wait: when it looks for others, and whether the leaders live.

Each look is a listing of all leases, so the nodes look one after the other; see `hpcelastic.protocol.leaders`.
"""

from collections.abc import Callable, Iterable
from math import inf

from hpcelastic.protocol.leaders import first_turn, stand_in_turn, watches
from hpcelastic.protocol.state import Member, NodeState, Participant, Phase
from hpcelastic.rendezvous.known import KnownState
from hpcelastic.rendezvous.lease_keeper import LeaseKeeper
from hpcelastic.rendezvous.observed_leases import EXPIRY_DELAY, ObservedLeases

_LONG = 3
"""Durations of a lease after which a reading tells little of the leaders that live at that time. Nodes that watch the
leaders read the leases more often."""


class Turns:
    """The turns of the node whose lease is ``lease``, in the state that is ``known``. ``clock`` returns seconds."""

    def __init__(
        self, leases: ObservedLeases, known: KnownState, lease: LeaseKeeper, clock: Callable[[], float]
    ) -> None:
        self._leases, self._known, self._lease, self._clock = leases, known, lease, clock
        self._phase = known.state.phase, known.state.round
        """The phase of the run, and the round, in which the turns have begun."""

        self.begin()

    def begin(self) -> None:
        """The content of the own lease, or the phase of the run, has changed."""
        self._since = self._clock()
        self._looks: list[float] = []
        """The times of the first two readings of the leases since then, and of the last one. A reading long after the
        one before it is a first one again: the leaders may have died since they were seen to live."""

        self._looks_again = False
        """Whether there was such a reading."""

    @property
    def pause(self) -> float:
        """Seconds until this node looks for others: for the first nodes of a run, or for a round to end.

        Many nodes have started together with it, and each of them would list all leases.
        """
        own, state = self._lease.published, self._known.state
        if own is None or own.node_state is not NodeState.READY or own.node in state.ranks:
            return 0.0
        joins = state.phase is Phase.RUNNING and self._leases.own != own
        begins = not state.participants and not self._leases.nodes
        return self._since + first_turn(own) - self._clock() if joins or begins else 0.0

    def until_reading(self, leaders: Iterable[Participant | Member]) -> float:
        """Return the seconds until this node must read the leases, because the ``leaders`` may be dead; infinity if it
        need not.

        From its turn on it reads them, until it sees that one of these renews its lease, or that all are dead.
        """
        own, state, looked_at = self._lease.published, self._known.state, self._leases.looked_at
        if own is None:
            return inf
        if self._phase != (state.phase, state.round):
            self._phase = state.phase, state.round
            self.begin()
        duration, last, due = self._lease.duration.seconds, max(looked_at, self._since), inf
        self._note(looked_at, _LONG * duration)
        again = self._looks_again and own.node_state is NodeState.READY
        turn = self._since + (0.0 if again else stand_in_turn(state, own, self._leases.size))
        if turn < inf and not any(self._renews(leader.node) for leader in leaders if leader.node != own.node):
            if len(self._looks) > 1:  # leases that have not changed since the first look expire
                turn = self._looks[0] + self._leases.expiry + EXPIRY_DELAY
            due = max(turn, last + duration / 4)
        if watches(state, own, self._leases.size):
            due = min(due, last + 2 * duration)
        return due - self._clock()

    def _note(self, looked_at: float, long: float) -> None:
        """Note the time of the last reading. One that is more than ``long`` seconds after the last is a first one."""
        looks = self._looks
        if looked_at < self._since or looked_at in looks:
            return
        if looks and looked_at - looks[-1] > long:
            self._looks, self._looks_again = [looked_at], True
        else:
            self._looks = [*looks[:2], looked_at]

    def _renews(self, node: str) -> bool:
        """Return whether a node has renewed its lease after the second of the readings that are noted."""
        silence = self._leases.silence(node)
        return silence is not None and len(self._looks) > 1 and self._clock() - silence >= self._looks[1]
