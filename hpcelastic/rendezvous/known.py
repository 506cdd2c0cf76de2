"""The newest version of the register that a node knows: read from there, or brought by a notification."""

from collections.abc import Callable

from hpcelastic.backends.backend import AnyRegister
from hpcelastic.protocol.changes import changed, unpack
from hpcelastic.protocol.codec import DecodeError
from hpcelastic.protocol.lease_duration import HeldLease
from hpcelastic.protocol.state import State
from hpcelastic.rendezvous.run import decode_state
from hpcelastic.storage.register import Version


class KnownState:
    """The newest state that this node knows. ``clock`` returns seconds.

    A change that a notification brings is the content of a version that exists. It may be late, and newer versions may
    exist too. It replaces a reading of the register if it follows the newest known version, and if the lease of this
    node has not expired since the last reading. While a lease is held, no round can end without this node: the others
    wait until it has stopped its workers. So a change that arrives late cannot start workers of a round that has ended.
    """

    def __init__(self, register: AnyRegister, first: State, clock: Callable[[], float]) -> None:
        self._register, self._clock = register, clock
        self.state = first
        self.version: Version | None = None
        """The version of ``state``; None before the first reading."""

        self._read_at = float("-inf")
        """The time at which the last reading of the register began."""

        self._changes: dict[int, bytes] = {}
        """The changes that notifications have brought since the last call of `read`, by the versions they lead to."""

        self.unread = False
        """Whether this node has written the newest version, and `read` has not returned it yet."""

    @property
    def number(self) -> int:
        """The number of the newest version; -1 before the first reading."""
        return -1 if self.version is None else self.version.number

    def offer(self, number: int, change: bytes) -> None:
        """Keep the change that leads to version ``number`` until the next call of `read`."""
        self._changes[number] = change

    def record(self, number: int, state: State) -> None:
        """Record version ``number``, which this node has written. The next call of `read` returns it."""
        self.state, self.version, self.unread = state, Version(number, None), True

    def read(self, held: HeldLease, regained_at: float) -> tuple[Version, State]:
        """Return the newest version and its state: by a change that was offered, or from the register.

        ``held`` is the lease of this node. ``regained_at`` is the time at which a lease that had expired was renewed.
        """
        changes, self._changes = self._changes, {}
        if self.unread and self.version is not None:
            self.unread = False
            return self.version, self.state
        unbroken = regained_at <= self._read_at and self._clock() < held.end
        adopted = False
        while unbroken and self.number + 1 in changes and self._adopt(changes[self.number + 1]):
            adopted = True
        if not adopted or max(changes) > self.number:
            self._read_register()
        assert self.version is not None
        return self.version, self.state

    def _adopt(self, change: bytes) -> bool:
        """Take the state of the next version from its difference to the newest known one; False if it is not valid."""
        try:
            self.state = changed(self.state, unpack(change))
        except DecodeError:
            return False
        self.version = Version(self.number + 1, None)
        self._register.assume(self.number)
        return True

    def _read_register(self) -> None:
        began = self._clock()
        version = self._register.read()
        if version.number > self.number:  # not if a listing is late and shows a version before an adopted one
            self.state, self.version = decode_state(self._register, version), version
        self._read_at = began
