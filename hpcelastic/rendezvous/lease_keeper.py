"""The lease of this node, as its owner keeps it."""

from collections.abc import Callable

from hpcelastic.backends.backend import AnyLease
from hpcelastic.protocol.lease_duration import HeldLease, LeaseDuration
from hpcelastic.protocol.settings import RendezvousSettings
from hpcelastic.protocol.state import Member

MIN_INTERVAL = 0.05
"""Minimum of seconds between two renewals that other nodes request."""


class LeaseKeeper:
    """Renews the lease of this node, and knows when the next renewal is due. ``clock`` returns seconds.

    ``held_until`` is called with the time at which the lease expires, whenever it changes. A renewal that shortens the
    lease does so before it is published, because other nodes count with the new duration as soon as they see it, also
    if the publication seems to fail. ``part`` is that of `LeaseDuration`.
    """

    def __init__(
        self,
        lease: AnyLease,
        settings: RendezvousSettings,
        clock: Callable[[], float],
        held_until: Callable[[float], None],
        part: float = 1.0,
    ) -> None:
        self._lease, self._clock, self._held_until = lease, clock, held_until
        self._margin = settings.margin
        self.duration = LeaseDuration(settings, part)
        self.published: Member | None = None
        """The content of the lease; None before the first renewal."""

        self.held = HeldLease(0.0, 0.0)
        """The newest renewal that has succeeded."""

        self.requested = False
        """Whether another node waits for a renewal, to see that this node is alive."""

        self.regained_at = float("-inf")
        """The time at which a lease that had expired was renewed."""

        self._changed_at = float("-inf")
        """The time at which another node has joined the only one, or has left it alone. It changes when renewals are
        due."""

    @property
    def settled_at(self) -> float:
        """The time from which all nodes must have seen the lease, in case it had expired before."""
        return self.regained_at + self._margin

    @property
    def settled(self) -> bool:
        """Whether the lease was renewed since `settled_at`."""
        return self.held.start >= self.settled_at

    def renew(self, member: Member) -> None:
        """Publish ``member``. Raises StoreError if the lease cannot be renewed."""
        now, first, duration = self._clock(), self.published is None, self.duration.seconds
        due = now if first else min(now, max(self.held.start + self.duration.interval, self._changed_at))
        if not first and now + duration < self.held.end:
            self._hold(self.held.start, now + duration)
        self._lease.renew(member, duration)
        done = self._clock()
        if not first and done >= self.held.end:
            self.regained_at = done
        self.published, self.requested = member, False
        self._hold(now, now + duration)
        self.duration.record(done - due)

    def set_alone(self, alone: bool) -> None:
        """Tell whether the run has no other node."""
        if self.duration.set_alone(alone):
            self._changed_at = self._clock()

    def until_renewal(self, early: bool = True) -> float:
        """Return the seconds until a renewal is due, ``early`` if one is requested; not positive if it is due now."""
        if self.published is None:
            return 0.0
        interval = MIN_INTERVAL if self.requested and early else self.duration.interval
        return self.held.start + interval - self._clock()

    def _hold(self, start: float, end: float) -> None:
        self.held = HeldLease(start, end)
        self._held_until(end)
