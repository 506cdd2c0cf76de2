"""The leases of all nodes, as one node has read them last."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from hpcelastic.backends.backend import Backend
from hpcelastic.protocol.leaders import COUNT, leaders
from hpcelastic.protocol.settings import RendezvousSettings
from hpcelastic.protocol.state import Member, Participant, Phase, Seen, State, View
from hpcelastic.rendezvous.known import KnownState
from hpcelastic.rendezvous.lease_keeper import LeaseKeeper

EXPIRY_DELAY = 0.01
"""Seconds after the expiry of a lease at which it has certainly expired."""


class ObservedLeases:
    """The leases that this node has read. ``clock`` returns seconds.

    ``known`` is the newest known state, and ``lease`` the own lease. Both tell whether there may be news.
    """

    def __init__(
        self,
        backend: Backend,
        settings: RendezvousSettings,
        clock: Callable[[], float],
        known: KnownState,
        lease: LeaseKeeper,
    ) -> None:
        self._backend, self._clock = backend, clock
        self._known, self._lease = known, lease
        self.observer = backend.observer(settings.expiry, clock)
        self.nodes: Mapping[str, Seen] = {}
        """The leases of all nodes; only the first ready ones before the first reading."""

        self._count = 0
        """The number of leases."""

        self.own: Member | None = None
        """The content of this node's lease at the last reading; None before the first one."""

        self.expiry = settings.expiry.of(None)
        """Seconds after which the leases of all living nodes expire if they are not renewed, at most."""

        self._current = False
        """False from news that may be in the leases until they are read."""

        self._version = -1
        """The version of the register at the last reading."""

        self._round = 0
        """The round of the state at the last reading."""

        self.looked_at = float("-inf")
        """The time at which the last reading began."""

        self._viewed: tuple[Mapping[str, Seen], Member | None, View] = self.nodes, None, View({})
        """The last result of `view`, after the leases and the own lease of which it was made."""

        self._led: tuple[State, View, list[Participant | Member]] = known.state, View({}), []
        """The last result of `leaders`, after the state and the leases of which it was made."""

    @property
    def size(self) -> int:
        """The number of nodes that there are, as far as this node knows."""
        own = self._lease.published
        return max(self._count, len(self._known.state.participants), own.job_nodes if own else 0)

    def mark_outdated(self) -> None:
        """There are news that may be in the leases."""
        self._current = False

    def read_names(self) -> None:
        """Read the names of the first ready nodes, without the content of any lease."""
        self._count, foremost = self._backend.first_ready(COUNT)
        self.nodes = {member.node: Seen(member, alive=True, proved=False) for member in foremost}

    def read(self, watchful: bool, interval: float) -> None:
        """Read the leases if they may have changed, or after ``interval`` seconds.

        If this node is not ``watchful``, that is as seldom as they are renewed: a node that has news advances the run
        itself. Only a node that has died cannot.
        """
        news = self._known.number != self._version or self._lease.published != self.own
        if news or watchful or not self._current or self._clock() - self.looked_at >= interval:
            self.look()
        self.own = self._lease.published

    def look(self) -> None:
        """Read the leases; see `AnyObserver.observe`."""
        self.looked_at = self._clock()
        state = self._known.state
        if state.round > self._round:
            self.observer.admit(node for node in state.ranks if node != state.just_lost)
            self._round = state.round
        self.nodes = self.observer.observe(state.ranks, complete=state.phase is Phase.JOINING)
        self._version, self.own = self._known.number, self._lease.published
        self._count, self._current = len(self.nodes), True
        self.expiry = self.observer.limit()

    def view(self, quorum_for: float = 0.0, expected: int | None = None) -> View:
        """Return what this node knows of all nodes, once it has published its own lease; see `View`."""
        nodes, member, view = self._viewed
        own = self._lease.published
        assert own is not None
        if nodes is not self.nodes or member is not own:  # with ten thousand nodes, to make it takes milliseconds
            view = View({**self.nodes, own.node: Seen(own, alive=True)})
            self._viewed = self.nodes, own, view
        return replace(view, quorum_for=quorum_for, expected=expected) if quorum_for or expected is not None else view

    def leaders(self) -> list[Participant | Member]:
        """Return the leaders; none before another node is known."""
        state = self._known.state
        if not state.participants and not self.nodes:
            return []
        (led, seen, found), view = self._led, self.view()
        if led is not state or seen is not view:
            found = leaders(state, view, self.size)
            self._led = state, view, found
        return found

    def silence(self, node: str) -> float | None:
        """Return the seconds since a renewal of the node's lease was seen last; None if its lease was never seen."""
        return self.observer.silence(node)
