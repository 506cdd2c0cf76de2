"""The lease of this node, as its agent follows it: when it ends, and which duration it has."""

from collections.abc import Callable

from hpcelastic.protocol.events import Event, LeaseChanged
from hpcelastic.protocol.lease_duration import HeldLease, LeaseDuration
from hpcelastic.protocol.settings import RendezvousSettings


class LeaseMonitor:
    """Passes the end of the lease on, and logs and reports its duration.

    `held_until` and `renewed` are called in the thread of the rendezvous.
    """

    def __init__(
        self,
        set_deadline: Callable[[float], None],
        settings: RendezvousSettings,
        log: Callable[[Event], None],
        report: Callable[[str], None],
    ) -> None:
        self._set_deadline, self._log, self._report = set_deadline, log, report
        self._end, self._first = 0.0, settings.first_lease
        self._seconds = self._first
        self.expiry = settings.expiry.of(None)
        """Seconds after which a node that becomes silent now is declared dead, at most."""

    def held_until(self, end: float) -> None:
        """The lease ends at ``end``. The guard learns it here, however busy the agent's thread is."""
        self._end = end
        self._set_deadline(end)

    def renewed(self, duration: LeaseDuration) -> None:
        """Log that the duration has changed, and report that it is longer than at first."""
        seconds, late = duration.seconds, duration.lateness
        before, self._seconds = self._seconds, seconds
        if seconds == before:
            return
        if seconds > max(before, self._first):
            self._report(f"a renewal of the lease was {late:.1f} s late: its duration is now {seconds:g} s")
        self._log(LeaseChanged(seconds=seconds, late=round(late, 3)))

    def still_held(self, lease: HeldLease) -> HeldLease:
        """Return what is left of a lease that was held at an observation. A later renewal may have shortened it."""
        return HeldLease(lease.start, min(lease.end, self._end))
