"""Progress marks: what a worker did last, in memory that it shares with its agent.

A worker writes a mark at each boundary of a step. It writes to memory only, without a system call or a lock, in about a
microsecond. The marks survive a SIGKILL of the worker, and the agent reads them at any time.

Each mark has a number and a check value. A reader skips a mark that its writer was overwriting, or had not completed
when it was killed.
"""

import mmap
import struct
import time
from dataclasses import dataclass
from enum import IntEnum

CAPACITY = 1024
"""Number of marks that a ring keeps. A newer mark replaces the oldest."""

_MARK = struct.Struct("qqqqqq")
"""Number, time, round, kind and value of the mark, and the exclusive or of the five."""

_COUNT = struct.Struct("q")
"""The number of marks ever written, at the start of a ring."""

RING_SIZE = _COUNT.size + CAPACITY * _MARK.size
"""Bytes of a ring."""


class MarkKind(IntEnum):
    """The kinds of marks, and the meaning of their values."""

    STEP = 1
    """The worker has called ``should_stop()``. The value is the number of its calls in this round."""

    SAVED = 2
    """The worker has saved its state. The value is the number of steps that the state contains."""

    RESTORED = 3
    """The worker has loaded a state. The value is the number of steps that the state contains."""

    STOPPING = 4
    """The worker has read a request to stop. The value is that of `STEP`."""

    PARKED = 5
    """The worker has left its round, and waits for the next one. The value is the round."""

    RESUMED = 6
    """The worker has entered another round. The value is the round."""

    ENTERED = 7
    """The worker has called the function that is called in each round. The value is the round."""

    GROUP = 8
    """The worker has created a process group. The value is the round."""


@dataclass(frozen=True)
class Mark:
    """One mark of a worker."""

    number: int
    """Marks of one seat are numbered from 1, over all rounds."""

    time: int
    """Nanoseconds on the clock since boot, CLOCK_BOOTTIME."""

    round: int
    kind: MarkKind
    value: int


class MarkRing:
    """The newest marks of one seat: `RING_SIZE` bytes in ``memory`` from ``offset`` on. It has one writer."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._memory, self._offset = memory, offset

    def write(self, round: int, kind: MarkKind, value: int) -> None:
        """Add a mark."""
        number = self._count + 1
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        check = number ^ now ^ round ^ kind ^ value
        _MARK.pack_into(self._memory, self._place(number), number, now, round, kind, value, check)
        _COUNT.pack_into(self._memory, self._offset, number)  # last, so that a counted mark is complete

    def read(self, after: int = 0) -> list[Mark]:
        """Return the marks with numbers above ``after`` that the ring still has, the oldest first."""
        count = self._count
        found = (self._read(number) for number in range(max(after, count - CAPACITY) + 1, count + 1))
        return [mark for mark in found if mark is not None]

    def newest(self, round: int) -> Mark | None:
        """Return the newest mark of a round; None if there is none."""
        count = self._count
        for number in range(count, max(0, count - CAPACITY), -1):
            mark = self._read(number)
            if mark is not None:
                return mark if mark.round == round else None
        return None

    def has_step(self, round: int) -> bool:
        """Return whether a step of the round is complete: the worker has begun a second one, or saved its state."""
        marks = [mark for mark in self.read() if mark.round == round]
        return any(mark.kind is MarkKind.SAVED or (mark.kind is MarkKind.STEP and mark.value > 1) for mark in marks)

    @property
    def _count(self) -> int:
        count: int = _COUNT.unpack_from(self._memory, self._offset)[0]
        return count

    def _place(self, number: int) -> int:
        return self._offset + _COUNT.size + number % CAPACITY * _MARK.size

    def _read(self, number: int) -> Mark | None:
        written, when, round, kind, value, check = _MARK.unpack_from(self._memory, self._place(number))
        if written != number or check != written ^ when ^ round ^ kind ^ value:
            return None
        return Mark(number, when, round, MarkKind(kind), value)
