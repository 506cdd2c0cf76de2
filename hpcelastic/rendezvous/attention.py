"""When a node looks at what the others have said.

Pure but for its clock. A look costs a listing of the register, which is short; who is to decide something reads the
leases as well, a listing with an entry for every node. If all nodes read them as often as one may want to, the load
would grow with the square of their number; so a few leaders read them often, all others by themselves ever more seldom
the more they are. Of a new version, which all must follow, all are told.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hpcelastic.protocol.settings import RendezvousSettings
from hpcelastic.protocol.state import Phase

_LOOKS = 128
"""Looks in a second of all nodes together, those of the leaders and those that somebody asks for aside."""

_ENTRIES = 128 * 128
"""Leases that all nodes together read in a second, the leaders aside."""

_TURN = 0.2
"""Seconds that each leader gives the one before it."""

_GAP = 0.01
"""Seconds between two looks at least, however many ask for one."""


@dataclass(frozen=True)
class Moment:
    """What a node has found when it looked, as far as it decides when to look again."""

    phase: Phase
    rank: int | None
    """Which of the leaders it is."""

    nodes: int
    """How many nodes have a lease."""

    calm: bool
    """True if the doorbell works, so that no news can pass unheard."""

    urgent: bool
    """True while a neighbour is silent, whose lease must be watched, or while this node can't follow yet."""


class Attention:
    """When to look next, on ``clock``, in seconds."""

    def __init__(self, settings: RendezvousSettings, clock: Callable[[], float]) -> None:
        self._poll, self._lease = settings.poll, settings.lease
        self._clock = clock
        self._own = self._reading = float("inf")
        self._told = self._looked = self._earliest = float("-inf")
        self._moment: Moment | None = None

    @property
    def due(self) -> bool:
        """True if it is time."""
        return self.pause <= 0

    @property
    def reading(self) -> bool:
        """True if it is time to read the leases as well."""
        return self._clock() >= self._reading

    @property
    def pause(self) -> float:
        """Seconds until it is time."""
        return max(min(self._own, self._reading, self._told), self._earliest) - self._clock()

    def looked(self, began: float, moment: Moment, read: bool) -> None:
        """The node has looked, from ``began`` to now, and has ``read`` the leases or not."""
        now = self._clock()
        self._moment, self._looked, self._told = moment, now, float("inf")
        self._earliest = now + max(_GAP, now - began if read else 0.0)
        self._own = now + self._interval(moment)
        self._reading = min(now + self._seldom(moment), float("inf") if read else self._reading)

    def told(self, newer: bool) -> None:
        """Somebody has news: a version that is ``newer``, or a word that only leaders need to read."""
        now, moment = self._clock(), self._moment
        if newer or moment is None:
            self._told = now
        elif moment.rank is not None:
            self._told = min(self._told, now + _TURN * moment.rank)
        else:
            self._reading = min(self._reading, max(now, self._looked + self._crowded(moment)))

    def soon(self, seconds: float) -> None:
        """Read the leases again after so long at the latest."""
        self._reading = min(self._reading, self._clock() + seconds)

    def _interval(self, moment: Moment) -> float:
        if moment.urgent or (moment.phase is Phase.JOINING and moment.rank is not None):
            return self._poll
        if moment.phase is not Phase.RUNNING or not moment.calm:
            return self._gentle(moment)
        # All is quiet, and a death would be heard. The leases are read so that a node that stops without a sound is
        # known from when it was last renewed; the few that do so are enough.
        return 2 * self._lease if moment.rank is None else self._lease / 6

    def _seldom(self, moment: Moment) -> float:
        """Seconds until the leases are read."""
        interval = self._interval(moment)
        return interval if moment.rank is not None else max(interval, self._crowded(moment))

    def _gentle(self, moment: Moment) -> float:
        return max(self._poll, moment.nodes / _LOOKS)

    def _crowded(self, moment: Moment) -> float:
        return max(self._poll, moment.nodes**2 / _ENTRIES)
