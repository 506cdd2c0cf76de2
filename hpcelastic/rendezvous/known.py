"""The newest version of the register that a node knows: read from there, or brought by a notification."""

from collections.abc import Callable

from hpcelastic.backends.backend import AnyRegister
from hpcelastic.protocol.changes import changed, unpack
from hpcelastic.protocol.codec import DecodeError
from hpcelastic.protocol.lease_duration import HeldLease
from hpcelastic.protocol.state import State
from hpcelastic.rendezvous.run import Reading, decode_state, is_fresh
from hpcelastic.storage.register import Version


class KnownState:
    """The newest state that this node knows. ``clock`` returns seconds.

    ``first`` is what the node has read before it joined. It is not read again if that was a moment ago. A version that
    followed meanwhile is not missed: the leaders see the lease of this node, and notify it of the next one.

    A change that a notification brings is the content of a version that exists. It may be late, and newer versions may
    exist too. It replaces a reading of the register if it follows the newest known version, and if the lease of this
    node has not expired since the last reading, which began after all nodes had seen the lease. While a lease is held,
    no round can end without this node: the others wait until it has stopped its workers. So a change that arrives late
    cannot start workers of a round that has ended.
    The same holds for a version that is opened because a notification has named it.
    """

    def __init__(self, register: AnyRegister, first: Reading, clock: Callable[[], float]) -> None:
        self._register, self._clock, self._first = register, clock, first
        self.state = first.state
        self.number = -1
        """The number of the newest version; -1 before the first call of `read`."""

        self._read_at = float("-inf")
        """The time at which the last reading of the register began."""

        self._changes: dict[int, bytes] = {}
        """The changes that notifications have brought since the last call of `read`, by the versions they lead to.
        A change that is empty must be read."""

        self.announced = 0
        """The newest version that a notification names which is not offered yet. Any thread may set it."""

        self._unread = False
        """Whether the newest version was recorded or adopted, and `read` has not returned it yet."""

    def offer(self, number: int, change: bytes) -> None:
        """Keep the change that leads to version ``number`` until the next call of `read`. Empty if it is not known."""
        self._changes[number] = change
        if number >= self.announced:
            self.announced = 0

    @property
    def offered(self) -> bool:
        """Whether a newer version was offered."""
        return max(self._changes, default=0) > self.number

    def record(self, number: int, state: State) -> None:
        """Record version ``number``, which this node has written. The next call of `read` returns it."""
        self.state, self.number, self._unread = state, number, True
        self._register.assume(number)

    def adopt(self, version: Version) -> None:
        """Take a version that was read from the register just now, if it is newer. The next call of `read` returns
        it."""
        self._unread = self._take(version)

    def read(self, held: HeldLease, settled_at: float) -> tuple[int, State]:
        """Return the newest version and its state: by a change that was offered, or from the register.

        ``held`` is the lease of this node; ``settled_at`` is that of `LeaseKeeper`.
        """
        changes, self._changes = self._changes, {}
        if self._unread:
            self._unread = False
        else:
            done = self.number < 0 and self._begin()
            newest = max(changes, default=0)
            if settled_at <= self._read_at and self._clock() < held.end:
                done |= self._follow(changes, newest)
            if not done or newest > self.number:
                self._read_register()
        return self.number, self.state

    def _begin(self) -> bool:
        """Take what was read before this node joined as read now; False if that was not a moment ago."""
        if not is_fresh(self._first, self._clock()):
            return False
        self.state, self.number, self._read_at = self._first.state, self._first.number, self._first.began
        self._register.assume(self.number)
        return True

    def _follow(self, changes: dict[int, bytes], newest: int) -> bool:
        """Take the ``changes`` that follow the newest known version, or open version ``newest``; False if none is new.

        Without a reading before them, no change is used.
        """
        before = self.number
        while self.number >= 0 and changes.get(self.number + 1) and self._adopt(changes[self.number + 1]):
            pass
        if newest > self.number >= 0:
            self._open(newest)
        return self.number > before

    def _open(self, number: int) -> None:
        """Read a version without a listing, if it can be opened."""
        version = self._register.open(number)
        if version is not None:
            self._take(version)

    def _adopt(self, change: bytes) -> bool:
        """Take the state of the next version from its difference to the newest known one; False if it is not valid."""
        try:
            self.state = changed(self.state, unpack(change))
        except DecodeError:
            return False
        self.number += 1
        self._register.assume(self.number)
        return True

    def _read_register(self) -> None:
        began = self._clock()
        self._take(self._register.read())
        self._read_at = began

    def _take(self, version: Version) -> bool:
        """Take a version that was read; False if a newer one is known, because the listing was late."""
        newer = version.number > self.number
        if newer:
            self.state, self.number = decode_state(self._register, version), version.number
        return newer
