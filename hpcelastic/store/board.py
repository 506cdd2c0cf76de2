"""A page of memory that an agent shares with its workers: what they are asked for, and what they have made of it.

No file and no signal: a worker looks at it in every step, in about a microsecond, and a filesystem that hangs can't
hold it. The agent owns the memory; who has been told its name can map it, also a process that a worker has started.
"""

import mmap
import os
import struct
import time
from dataclasses import dataclass

_WISH = struct.Struct("qd240s")
"""Round, deadline, reason."""

_SEAT = struct.Struct("qqqq")
"""Last round in which the worker looked, was told to stop, ignored SIGTERM; and the progress that it reports."""

_LOOKED, _TOLD, _DEAF, _PROGRESS = range(4)
"""The places of these on a seat."""

_NUMBER = struct.Struct("q")
_NEVER = -1


@dataclass(frozen=True)
class Wish:
    """That the workers of ``round`` come to a step's end."""

    round: int
    deadline: float
    """On the clock since boot; see `now`."""

    reason: str


def now() -> float:
    """Seconds on the clock that all processes of a machine share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Board:
    """The page; ``seats`` is how many workers there may be, each at the place of its local rank."""

    def __init__(self, fd: int, owned: bool) -> None:
        self._fd = fd if owned else -1
        self._memory = mmap.mmap(fd, 0)

    @classmethod
    def make(cls, seats: int) -> "Board":
        """A new page, of which nobody has been asked anything."""
        fd = os.memfd_create("hpcelastic-board", os.MFD_CLOEXEC)
        os.truncate(fd, _WISH.size + seats * _SEAT.size)
        board = cls(fd, owned=True)
        _WISH.pack_into(board._memory, 0, _NEVER, 0.0, b"")
        for seat in range(seats):
            _SEAT.pack_into(board._memory, _place(seat, _LOOKED), _NEVER, _NEVER, _NEVER, _NEVER)
        return board

    @classmethod
    def open(cls, name: str) -> "Board":
        """The page of that name. Raises OSError where the agent has ended."""
        fd = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(fd, owned=False)
        finally:
            os.close(fd)

    @property
    def name(self) -> str:
        """By which processes of this machine find it while its owner lives."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """The owner needs it no longer."""
        self._memory.close()
        os.close(self._fd)

    # The agent's side

    def ask(self, wish: Wish) -> None:
        """Ask the workers of a round to come to a step's end."""
        # The round goes last: who sees it sees the rest.
        reason = wish.reason.encode(errors="replace")[:240]
        struct.pack_into("d240s", self._memory, 8, wish.deadline, reason)
        _NUMBER.pack_into(self._memory, 0, wish.round)

    def heeded(self, round: int) -> bool:
        """Whether any worker of the round has looked here, so that it will come to a step's end if asked to."""
        return any(self._get(seat, _LOOKED) == round for seat in self._seats)

    def deaf(self, seat: int, round: int) -> bool:
        """Whether this worker of the round ignores SIGTERM."""
        return self._get(seat, _DEAF) == round

    def told(self, round: int) -> bool:
        """Whether any worker of the round knows that it is to stop."""
        return any(self._get(seat, _TOLD) == round for seat in self._seats)

    def progress(self) -> int | None:
        """The furthest that a worker has reported; None if none has."""
        furthest = max(self._get(seat, _PROGRESS) for seat in self._seats)
        return None if furthest == _NEVER else furthest

    # A worker's side

    def look(self, seat: int, round: int) -> bool:
        """Whether the workers of the round are asked to stop; the agent learns that this one heeds it."""
        self._put(seat, _LOOKED, round)
        return bool(_NUMBER.unpack_from(self._memory, 0)[0] == round)

    def wish(self) -> Wish:
        """What was asked last."""
        round, deadline, reason = _WISH.unpack_from(self._memory, 0)
        return Wish(round, deadline, reason.rstrip(b"\0").decode(errors="replace"))

    def tell(self, seat: int, round: int) -> None:
        """This worker knows that it is to stop: its end will be no success."""
        self._put(seat, _TOLD, round)

    def deafen(self, seat: int, round: int) -> None:
        """This worker ignores SIGTERM."""
        self._put(seat, _DEAF, round)

    def report(self, seat: int, progress: int) -> None:
        """How far this worker has come, in steps that were published."""
        self._put(seat, _PROGRESS, progress)

    @property
    def _seats(self) -> range:
        return range((len(self._memory) - _WISH.size) // _SEAT.size)

    def _get(self, seat: int, what: int) -> int:
        value: int = _NUMBER.unpack_from(self._memory, _place(seat, what))[0]
        return value

    def _put(self, seat: int, what: int, value: int) -> None:
        _NUMBER.pack_into(self._memory, _place(seat, what), value)


def _place(seat: int, what: int) -> int:
    return _WISH.size + seat * _SEAT.size + what * _NUMBER.size
