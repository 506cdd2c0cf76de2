"""Progress marks: what a worker did last, in memory that it shares with its agent.

A worker writes a mark at each boundary of a step. It writes to memory only, without a system call or a lock, in about a
microsecond. The marks survive a SIGKILL of the worker, and the agent reads them at any time.

Each mark has a number and a check value. A reader skips a mark that its writer was overwriting, or had not completed
when it was killed.

Beside the marks, the worker keeps totals of its round: when it began to train, and for how long it made no steps. So no
reader has to see each mark.
"""

import mmap
import struct
import time
from dataclasses import dataclass

from hpcelastic.ipc.mark_kinds import PHASES, MarkKind, Source
from hpcelastic.ipc.round_totals import TOTALS_SIZE, RoundTotals, Steps, TotalsMemory

__all__ = ["CAPACITY", "PHASES", "RING_SIZE", "Mark", "MarkKind", "MarkRing", "RoundTotals", "Source"]

CAPACITY = 1024
"""Number of marks that a ring keeps. A newer mark replaces the oldest."""

_MARK = struct.Struct("qqqqqq")
"""Number, time, round, kind and value of the mark, and the exclusive or of the five."""

_HEADER = struct.Struct("qqqqqq")
"""At the start of a ring: the number of marks ever written; the newest round, the value of its newest mark of a step,
the number of steps that the worker had made before the first one, the time of that mark, and the kind of the outermost
phase in which the worker is, or 0."""

RING_SIZE = _HEADER.size + TOTALS_SIZE + CAPACITY * _MARK.size
"""Bytes of a ring."""

_DEMANDS_AND_STEPS = (MarkKind.POISONED, MarkKind.ROLLBACK, MarkKind.STEP, MarkKind.RESTORED)
"""The marks of a demand for an older state, and those that show that the worker has continued in spite of it."""


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
        self._totals = TotalsMemory(memory, offset + _HEADER.size)
        self._marks = offset + _HEADER.size + TOTALS_SIZE

    def write(self, round: int, kind: MarkKind, value: int) -> None:
        """Add a mark."""
        memory, offset = self._memory, self._offset
        number, newest, steps, before, last_step, phase = _HEADER.unpack_from(memory, offset)
        number += 1
        if newest != round:
            steps = before = last_step = phase = 0
            self._totals.clear()
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        check = number ^ now ^ round ^ kind ^ value
        _MARK.pack_into(memory, self._marks + number % CAPACITY * _MARK.size, number, now, round, kind, value, check)
        if kind is MarkKind.STEP:  # the most frequent mark, which updates the fewest totals
            steps, last_step = value, now
            if phase:
                phase = self._totals.end_phases(phase, now)
            if value & (value - 1) == 0:
                self._totals.sample(value, now)
        else:
            if kind is MarkKind.RESTORED:
                before = value - steps
            phase = self._totals.add(kind, value, now, before + steps, phase)
        # Last, so that a counted mark is complete.
        _HEADER.pack_into(memory, offset, number, round, steps, before, last_step, phase)

    def read(self, after: int = 0, at_most: int = CAPACITY) -> list[Mark]:
        """Return the newest marks with numbers above ``after``, ``at_most`` so many, the oldest first."""
        count = self._count
        found = (self._read(number) for number in range(max(after, count - at_most) + 1, count + 1))
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

    def steps(self, round: int) -> int | None:
        """Return the number of steps that the training had begun, in this round and before; None if it is unknown."""
        _, newest, steps, before, _, _ = _HEADER.unpack_from(self._memory, self._offset)
        return before + steps if newest == round and steps else None

    def rollback(self, round: int) -> tuple[int, int] | None:
        """Return the values of `MarkKind.POISONED` and `MarkKind.ROLLBACK` if no step of the round has followed.

        Other marks may follow, such as the end of the phase in which the state was found to be poisoned.
        """
        marks = [mark for mark in self.read() if mark.round == round and mark.kind in _DEMANDS_AND_STEPS][-2:]
        if [mark.kind for mark in marks] != [MarkKind.POISONED, MarkKind.ROLLBACK]:
            return None
        return marks[0].value, marks[1].value

    def totals(self, round: int) -> RoundTotals | None:
        """Return the totals of a round; None if the newest mark belongs to another one."""
        number, newest, steps, before, last_step, phase = _HEADER.unpack_from(self._memory, self._offset)
        if newest != round or not number:
            return None
        return self._totals.read(round, Steps(steps, before, last_step, phase))

    @property
    def _count(self) -> int:
        count: int = _HEADER.unpack_from(self._memory, self._offset)[0]
        return count

    def _place(self, number: int) -> int:
        return self._marks + number % CAPACITY * _MARK.size

    def _read(self, number: int) -> Mark | None:
        written, when, round, kind, value, check = _MARK.unpack_from(self._memory, self._place(number))
        if written != number or check != written ^ when ^ round ^ kind ^ value:
            return None
        return Mark(number, when, round, MarkKind(kind), value)
