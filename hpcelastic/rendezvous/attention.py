"""When a node looks at what the others have said.

Pure but for its clock. A look costs a listing of the register and one of the leases. If all nodes looked as often as
one may want to, the load would grow with the square of their number; so a few leaders look often, and all others look
when they are told, and by themselves so seldom that all of them together stay within `_LOOKS` a second.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hpcelastic.protocol.settings import RendezvousSettings
from hpcelastic.protocol.state import Phase

_LOOKS = 128
"""Looks in a second of all nodes together, those of the leaders and those that somebody asks for aside."""

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
        self._next = self._looked = self._earliest = float("-inf")
        self._moment: Moment | None = None

    @property
    def due(self) -> bool:
        """True if it is time."""
        return self._clock() >= max(self._next, self._earliest)

    @property
    def pause(self) -> float:
        """Seconds until it is time."""
        return max(self._next, self._earliest) - self._clock()

    def looked(self, began: float, moment: Moment) -> None:
        """The node has looked, from ``began`` to now."""
        now = self._clock()
        self._moment, self._looked = moment, now
        self._earliest = now + max(_GAP, now - began)
        self._next = now + self._interval(moment)

    def told(self, newer: bool) -> None:
        """Somebody has news: a version that is ``newer``, or a word that only leaders need to read."""
        now, moment = self._clock(), self._moment
        if newer or moment is None:
            self._next = now
        elif moment.rank is not None:
            self._next = min(self._next, now + _TURN * moment.rank)
        else:
            self._next = min(self._next, max(now, self._looked + self._gentle(moment)))

    def _interval(self, moment: Moment) -> float:
        if moment.urgent or (moment.phase is Phase.JOINING and moment.rank is not None):
            return self._poll
        if moment.phase is not Phase.RUNNING or not moment.calm:
            return self._gentle(moment)
        # All is quiet, and a death would be heard. The leases are read so that a node that stops without a sound is
        # known from when it was last renewed; the few that do so are enough.
        return 2 * self._lease if moment.rank is None else self._lease / 6

    def _gentle(self, moment: Moment) -> float:
        return max(self._poll, moment.nodes / _LOOKS)
