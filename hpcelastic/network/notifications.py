"""The filters for received notifications, and the record of the versions that notifications and heartbeats name.

Pure: time is passed in.
"""

from collections import OrderedDict

NOTIFICATION_INTERVAL = 0.01
"""Seconds between two notifications that are passed on. So at most a hundred polls a second follow from them."""

_MAX_SENDERS = 4096


class ReplayFilter:
    """Distinguishes new notifications from replayed ones, by the highest sequence of each sender."""

    def __init__(self) -> None:
        self._highest: OrderedDict[str, int] = OrderedDict()

    def is_new(self, sender: str, sequence: int) -> bool:
        """Return True, once, for a sequence above all others of ``sender``."""
        if sequence <= self._highest.get(sender, -1):
            return False
        self._highest[sender] = sequence
        self._highest.move_to_end(sender)
        if len(self._highest) > _MAX_SENDERS:  # a replay from the removed sender costs one poll
            self._highest.popitem(last=False)
        return True


class RateLimiter:
    """Passes on the newest notified version, once per `NOTIFICATION_INTERVAL`; the last one is never lost."""

    def __init__(self) -> None:
        self._pending: int | None = None
        self._last_passed = float("-inf")

    @property
    def deadline(self) -> float | None:
        """The time at which a version has to be passed on; None if there is none."""
        return None if self._pending is None else self._last_passed + NOTIFICATION_INTERVAL

    def add(self, version: int) -> None:
        self._pending = version if self._pending is None else max(version, self._pending)

    def take(self, now: float) -> int | None:
        """Return the version to pass on now; None if there is none, or it is too early."""
        version = self._pending
        if version is None or now < self._last_passed + NOTIFICATION_INTERVAL:
            return None
        self._pending, self._last_passed = None, now
        return version


class KnownVersions:
    """The newest version of the register that an agent knows, and those of which it was notified."""

    def __init__(self) -> None:
        self.newest = 0
        """The newest version that the agent knows, or that a datagram has named. Its heartbeats carry it."""

        self._notified = self._by_datagram = 0

    def learn(self, version: int) -> bool:
        """Let heartbeats carry ``version``. Return whether it is newer than all before."""
        new = version > self.newest
        self.newest = max(version, self.newest)
        self._notified = max(version, self._notified)
        return new

    def add_datagram(self, version: int) -> None:
        """A datagram has notified the agent of ``version``."""
        self._by_datagram = max(version, self._by_datagram)
        self._notified = max(version, self._notified)

    def add_heartbeat(self, version: int) -> bool:
        """A heartbeat carries ``version``. Return whether the agent has to be notified of it, once for each version."""
        new = version > self._notified
        self._notified = max(version, self._notified)
        return new

    @property
    def sent_to_all(self) -> bool:
        """Whether a datagram has brought the newest version. Its writer has sent one to all nodes."""
        return self._by_datagram >= self.newest
