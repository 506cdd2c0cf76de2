"""The lease of this node, as its owner keeps it."""

from collections.abc import Callable

from hpcelastic.backends.backend import AnyLease
from hpcelastic.protocol.settings import RENEWALS, RendezvousSettings
from hpcelastic.protocol.state import Member

MIN_INTERVAL = 0.05
"""Minimum of seconds between two renewals that other nodes request."""


class LeaseKeeper:
    """Renews the lease of this node, and knows when the next renewal is due. ``clock`` returns seconds."""

    def __init__(self, lease: AnyLease, settings: RendezvousSettings, clock: Callable[[], float]) -> None:
        self._lease, self._clock = lease, clock
        self._duration, self._margin = settings.lease, settings.margin
        self.interval = settings.lease / RENEWALS
        """Seconds between two renewals that nothing hastens."""

        self.published: Member | None = None
        """The content of the lease; None before the first renewal."""

        self.renewed_at = 0.0
        """The time at which the newest renewal began. The lease holds for its duration from then."""

        self.requested = False
        """Whether another node waits for a renewal, to see that this node is alive."""

        self._regained_at = float("-inf")
        """The time at which a lease that had expired was renewed."""

    @property
    def settled(self) -> bool:
        """Whether all nodes must have seen the lease as it is now, in case it had expired before."""
        return self.renewed_at >= self._regained_at + self._margin

    def renew(self, member: Member) -> None:
        """Publish ``member``. Raises StoreError if the lease cannot be renewed."""
        now, first = self._clock(), self.published is None
        self._lease.renew(member)
        done = self._clock()
        if not first and done >= self.renewed_at + self._duration:
            self._regained_at = done
        self.published, self.renewed_at, self.requested = member, now, False

    def until_renewal(self) -> float:
        """Return the seconds until a renewal is due; not positive if it is due now."""
        if self.published is None:
            return 0.0
        return self.renewed_at + (MIN_INTERVAL if self.requested else self.interval) - self._clock()
