"""The duration of a node's lease, which the node chooses itself if ``rendezvous.lease`` is ``auto``.

Pure: times are passed in, in seconds. A short lease lets the other nodes continue soon after a node has become silent.
A long lease lets a node survive a filesystem that stalls. So a node measures how late its renewals are:

- It begins with the duration ``first``, and renews as often as the shortest duration needs. After `_TRIAL` renewals it
  takes the shortest duration that is `_CAUTION` times as long as the latest of them was late.
- A renewal that is later raises the duration at once, at the next renewal. The lateness is remembered for the next
  500 to 1,000 renewals.
- If other nodes declare the node dead, they see its renewals late. That counts like a renewal that is late by the
  duration of the lease.
- No more than ``first`` is needed for caution. A longer duration is only taken if renewals have been so late that a
  lease of the duration ``first`` would nearly have expired.
- The only node of a run takes ``first`` at least: no other node waits for its expiry.
"""

import math
from typing import NamedTuple

from hpcelastic.protocol.settings import RENEWALS, RendezvousSettings

_TRIAL = 30
"""Renewals that are measured before the duration is less than ``first``."""

_CAUTION = 8.0
"""The duration in relation to the longest lateness, up to ``first``. A lease expires at a lateness of 2/3 of it."""

_SURVIVAL = 3.0
"""The same beyond ``first``."""

_MEMORY = 500
"""Renewals for which a lateness is remembered at least."""


class HeldLease(NamedTuple):
    """A lease that this node has held: when its renewal began, and when it expires."""

    start: float
    end: float


class LeaseDuration:
    """The duration of one node's lease, in seconds. It is constant unless ``rendezvous.lease`` is ``auto``.

    ``part`` is that of `hpcelastic.protocol.spread.part_of_interval`.
    """

    def __init__(self, settings: RendezvousSettings, part: float = 1.0) -> None:
        self._part = part
        self._shortest, self._first = settings.shortest_lease, settings.first_lease
        self._longest = settings.longest_lease
        self._renewals = 0
        self._latest = self._latest_before = 0.0
        """The longest lateness of this and of the previous `_MEMORY` renewals."""

        self._alone = False
        self.seconds = self._first
        """The duration of the next renewal."""

    @property
    def interval(self) -> float:
        """The time between two renewals that nothing hastens."""
        measures = self._renewals < _TRIAL and not self._alone
        return (self._shortest if measures else self.seconds) / RENEWALS * self._part

    @property
    def lateness(self) -> float:
        """The longest lateness of a renewal that is remembered."""
        return max(self._latest, self._latest_before)

    def record(self, late: float) -> None:
        """Record that a renewal has taken effect ``late`` seconds after it was due."""
        self._renewals += 1
        self._add(late)

    def declared_dead(self) -> None:
        """Other nodes have declared this node dead although it is alive: they see its renewals late."""
        self._add(self.seconds)

    def set_alone(self, alone: bool) -> bool:
        """Tell whether the run has no other node. Return whether that has changed."""
        if alone == self._alone:
            return False
        self._alone = alone
        self._choose()
        return True

    def _add(self, late: float) -> None:
        self._latest = max(self._latest, late)
        self._choose()
        if self._renewals % _MEMORY == 0:
            self._latest_before, self._latest = self._latest, 0.0

    def _choose(self) -> None:
        wanted = max(min(_CAUTION * self.lateness, self._first), _SURVIVAL * self.lateness)
        least = self._shortest if self._renewals >= _TRIAL and not self._alone else self._first
        self.seconds = min(max(math.ceil(wanted), least), self._longest)
