"""Which bells count, and how often they are passed on. Pure: time is passed in."""

from collections import OrderedDict

GAP = 0.01
"""Seconds between two bells that are passed on: however many ring, there are a hundred looks a second at most."""

_REMEMBERED = 4096


class Freshness:
    """Tells a new bell from one that was heard before, by each sender's highest sequence."""

    def __init__(self) -> None:
        self._highest: OrderedDict[str, int] = OrderedDict()

    def fresh(self, sender: str, sequence: int) -> bool:
        """True, once, for a sequence above all others of ``sender``."""
        if sequence <= self._highest.get(sender, -1):
            return False
        self._highest[sender] = sequence
        self._highest.move_to_end(sender)
        if len(self._highest) > _REMEMBERED:  # of the one forgotten, an old bell would cost a look
            self._highest.popitem(last=False)
        return True


class Gate:
    """Passes on the newest version that was rung, at most once in ``GAP``; the last one is never swallowed."""

    def __init__(self) -> None:
        self._pending: int | None = None
        self._passed = float("-inf")

    @property
    def due(self) -> float | None:
        """When something has to be passed on; None if there is nothing."""
        return None if self._pending is None else self._passed + GAP

    def ring(self, version: int) -> None:
        self._pending = version if self._pending is None else max(version, self._pending)

    def passed(self, now: float) -> int | None:
        """The version to pass on now; None if there is none, or it is too early."""
        version = self._pending
        if version is None or now < self._passed + GAP:
            return None
        self._pending, self._passed = None, now
        return version
