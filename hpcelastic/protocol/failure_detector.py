"""The failure detector for one neighbour: evaluates its heartbeats and refusals, and schedules the dials to it.

Pure: time is passed in, in seconds.

A refusal counts only from a port at which the neighbour itself has answered before, and only while there is no link.
A lost packet, a pause of either side, a network partition and a firewall's ICMP message cannot be told apart and prove
nothing. They end in `PeerSilent`, and then the neighbour's lease decides.
"""

from hpcelastic.protocol.peers import PeerHeard, PeerRefused, PeerSilent

HEARTBEAT_INTERVAL = 0.5
"""Seconds between two heartbeats, at least."""

REPORT_INTERVAL = 0.5
"""Seconds between two repetitions of `PeerRefused`, and between two dials."""

_MISSED_HEARTBEATS = 3
"""Heartbeats that must be missing until a linked neighbour counts as silent."""

_LINK_INTERVALS = 6
"""Intervals of heartbeats until a neighbour that was never linked counts as silent, and until a link without a
heartbeat is given up."""

FAST_REDIAL_DELAY = 0.05
"""Seconds between two dials right after a link was lost."""

FAST_REDIAL_TIMEOUT = 1.0
"""Seconds after the loss of a link during which dials use `FAST_REDIAL_DELAY`."""

SLOW_REDIAL_DELAY = 2.0
"""Seconds between two dials to a neighbour that has not been reached for longer than `_LINK_INTERVALS`."""

_MIN_REFUSALS = 3
_MIN_REFUSED_SECONDS = 0.09


def heartbeat_interval(lease: float) -> float:
    """Return the seconds between two heartbeats in a run whose leases hold for ``lease`` seconds or longer.

    Only the expired lease of a silent node proves its death. So in a large run, whose leases are long, heartbeats need
    not be frequent.
    """
    return max(HEARTBEAT_INTERVAL, lease / 8)


class PeerFailureDetector:
    """The failure detector for the neighbour ``node``, which is watched from ``now`` on.

    All nodes of a run send heartbeats every ``interval`` seconds.
    """

    def __init__(self, node: str, now: float, interval: float = HEARTBEAT_INTERVAL) -> None:
        self.node = node
        self._silence_timeout, self._link_timeout = _MISSED_HEARTBEATS * interval, _LINK_INTERVALS * interval
        self.linked = False
        self.port_confirmed = False
        """True once the neighbour itself has answered at its port. Without this no refusal of that port counts."""

        self.silent = False
        self._ever_linked = False
        self._since = now
        """When the watch began, or when the link was last closed on purpose."""

        self._last_heartbeat = now
        self._lost_at: float | None = None
        """When the link was lost. None while there is a link, and before the first one."""

        self._refusals = 0
        """Consecutive refusals."""

        self._refused_since = now
        self._reported_at = float("-inf")
        """When `PeerRefused` was last reported."""

        self._next_dial = now

    @property
    def next_dial(self) -> float | None:
        """The time of the next dial; None if no dial is needed."""
        return None if self.linked and self.port_confirmed else self._next_dial

    @property
    def refused(self) -> bool:
        """True after enough refusals, until something contradicts them."""
        return self._reported_at > float("-inf")

    def dial_started(self, now: float) -> None:
        """Schedule the next dial; the delay depends on what happened before."""
        self._next_dial = now + self._redial_delay(now)

    def port_answered(self) -> None:
        """Record that the neighbour itself has answered at its port."""
        self.port_confirmed = True

    def link_established(self, now: float) -> PeerHeard | None:
        """Record a link, or a better one. The handshake at its start counts as a heartbeat.

        Return `PeerHeard` after a silence, and after a link that was lost.
        """
        was_lost, self._lost_at = self._lost_at is not None, None
        self.linked = self._ever_linked = True
        self._reset_refusals()
        return self.heartbeat_received(now) or (PeerHeard(self.node) if was_lost else None)

    def heartbeat_received(self, now: float) -> PeerHeard | None:
        """Record a heartbeat."""
        self._last_heartbeat = now
        if not self.silent:
            return None
        self.silent = False
        return PeerHeard(self.node)

    def link_closed(self, now: float) -> None:
        """Record that one of the two sides closed the link on purpose."""
        self.linked = False
        self._since = now
        self._next_dial = now + REPORT_INTERVAL

    def link_lost(self, now: float) -> None:
        """Record that the link broke."""
        self.linked = False
        self._lost_at = self._next_dial = now

    def dial_reset(self, now: float, started: float) -> None:
        """Record the reset of a dial that the kernel accepted and that was never answered.

        The last process of the neighbour may have ended.
        """
        self._reset_refusals()
        # The minimum age keeps two agents that accept and reset each other's dials from redialling without pause.
        if self._ever_linked and not self.linked and now - started >= REPORT_INTERVAL:
            self._lost_at = self._next_dial = now

    def dial_failed(self) -> None:
        """Record that a dial failed for an unknown reason."""
        self._reset_refusals()

    def dial_refused(self, now: float) -> PeerRefused | None:
        """Record that the neighbour's kernel refused a dial; return `PeerRefused` when it has to be reported."""
        if self.linked or not self.port_confirmed:
            return None
        if not self._refusals:
            self._refused_since = now
        self._refusals += 1
        enough = self._refusals >= _MIN_REFUSALS and now - self._refused_since >= _MIN_REFUSED_SECONDS
        if not enough or now - self._reported_at < REPORT_INTERVAL * 0.9:
            return None
        self._reported_at = now
        return PeerRefused(self.node)

    def check_silence(self, now: float) -> PeerSilent | None:
        """Return `PeerSilent` when it has to be reported. Called with every heartbeat of our own."""
        timeout = self._silence_timeout if self._ever_linked else self._link_timeout
        if now - self._last_heartbeat <= timeout or self.refused:
            return None
        self.silent = True
        return PeerSilent(self.node)

    def link_timed_out(self, now: float) -> bool:
        """True if there is a link that has had no heartbeat for so long that another link may work better."""
        return self.linked and now - self._last_heartbeat > self._link_timeout

    def misses_heartbeats(self, now: float) -> bool:
        """True if `_MISSED_HEARTBEATS` heartbeats are missing."""
        return now - self._last_heartbeat > self._silence_timeout

    def ignore_pause(self, seconds: float) -> None:
        """Disregard ``seconds`` in which this process hung and could not receive heartbeats."""
        self._last_heartbeat += seconds

    def _reset_refusals(self) -> None:
        self._refusals = 0
        self._reported_at = float("-inf")

    def _redial_delay(self, now: float) -> float:
        if self._lost_at is not None:
            return FAST_REDIAL_DELAY if now - self._lost_at < FAST_REDIAL_TIMEOUT else REPORT_INTERVAL
        return REPORT_INTERVAL if now - self._since < self._link_timeout else SLOW_REDIAL_DELAY
