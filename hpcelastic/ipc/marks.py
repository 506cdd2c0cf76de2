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
from enum import IntEnum

CAPACITY = 1024
"""Number of marks that a ring keeps. A newer mark replaces the oldest."""

_MARK = struct.Struct("qqqqqq")
"""Number, time, round, kind and value of the mark, and the exclusive or of the five."""

_HEADER = struct.Struct("qqqq")
"""At the start of a ring: the number of marks ever written; the newest round, the value of its newest mark of a step,
and the number of steps that the worker had made before the first one."""

SAMPLES = 24
"""Number of steps whose times are kept: those with the numbers 1, 2, 4, 8 and so on."""

_NUMBER = struct.Struct("q")
_TOTALS = struct.Struct(f"{16 + SAMPLES}q")
"""After the header: the totals of the newest round, in the order of `_Place`, and the times of the sampled steps."""

RING_SIZE = _HEADER.size + _TOTALS.size + CAPACITY * _MARK.size
"""Bytes of a ring."""


class MarkKind(IntEnum):
    """The kinds of marks, and the meaning of their values."""

    STEP = 1
    """The worker has called ``should_stop()``. The value is the number of its calls in this round."""

    SAVED = 2
    """The worker has saved its state. The value is the number of steps that the state contains."""

    RESTORED = 3
    """The worker continues from a state. The value is the number of steps that the state contains."""

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

    SAVING = 9
    """The worker has begun to save its state. The value is 0."""

    COMPILING = 10
    """The worker has begun to compile. The value is the time limit in seconds; 0 for the default."""

    EVALUATING = 11
    """The worker has begun to evaluate. The value is that of `COMPILING`."""

    PHASE = 12
    """The worker has begun a phase of another kind. The value is that of `COMPILING`."""

    PHASE_ENDED = 13
    """The worker has ended the newest phase that had not ended. The value is 0."""

    DONE = 14
    """The worker has no further step to make. The value is the number of steps that are complete."""

    POISONED = 15
    """The worker has found its state to be poisoned. The value is the number of steps that are complete. `ROLLBACK`
    follows."""

    ROLLBACK = 16
    """The worker demands that training returns to an older state. The value is the number of steps in that state."""

    SOURCE = 17
    """The worker has found the state with which it continues. The value is a `Source`. `RESTORED` follows."""


class Source(IntEnum):
    """The place from which a worker has its state at the beginning of a round."""

    UNKNOWN = 0
    KEPT = 1
    """The process has kept its state over the end of the last round."""

    PEER = 2
    """Another rank has sent the state."""

    MEMORY = 3
    """A snapshot in the memory of this node's agent, or of another node's agent."""

    DISK = 4
    BEGINNING = 5
    """There was no state yet: the training begins."""


PHASES = (MarkKind.SAVING, MarkKind.COMPILING, MarkKind.EVALUATING, MarkKind.PHASE)
"""The marks that begin a phase, in which the worker makes no steps."""


class _Place(IntEnum):
    """The places of the totals. Times are in nanoseconds on the clock since boot, and 0 before the first mark."""

    ENTERED = 0
    GROUP = 1
    RESTORED = 2
    RESTORED_STEP = 3
    SOURCE = 4
    SAVED = 5
    SAVED_STEP = 6
    SAVING = 7
    """The duration of all saves, without one that has not ended."""

    COMPILING = 8
    OTHER = 9
    """The duration of evaluations and other phases."""

    LAST_STEP = 10
    PHASE = 11
    """The kind of the outermost phase in which the worker is; 0 if it is in none."""

    PHASE_BEGAN = 12
    DEPTH = 13
    """The number of phases that have begun and have not ended."""

    SAVES = 14
    """The number of saves that have ended."""

    DONE = 15
    FIRST_SAMPLE = 16


# Computed once, because each step needs them.
_LAST_STEP_OFFSET, _PHASE_OFFSET = _Place.LAST_STEP * _NUMBER.size, _Place.PHASE * _NUMBER.size

_DURATION = {MarkKind.SAVING: _Place.SAVING, MarkKind.COMPILING: _Place.COMPILING}
"""The place of the duration of each kind of phase; `_Place.OTHER` for all others."""

_TIMED = {MarkKind.ENTERED: _Place.ENTERED, MarkKind.GROUP: _Place.GROUP, MarkKind.DONE: _Place.DONE}
"""Marks of which the first one counts."""

_VALUED = {MarkKind.RESTORED: _Place.RESTORED, MarkKind.SAVED: _Place.SAVED}
"""Marks of which the last one counts, with its value in the next place."""


@dataclass(frozen=True)
class RoundTotals:
    """The totals of one worker in one round. Times are in nanoseconds since boot; 0 if there was no such mark."""

    round: int
    steps: int
    """The number of calls of ``should_stop()``."""

    before: int | None
    """The number of steps that the state had at the beginning; None if the worker has not told it."""

    entered: int
    group: int
    restored: int
    restored_step: int
    source: Source
    saved: int
    saved_step: int
    """The number of steps in the newest state that is saved. Only valid if ``saved`` is not 0."""

    saves: int
    """The number of saves that have ended."""

    saving: int
    """Nanoseconds in which the worker saved its state, with the save that it is in."""

    compiling: int
    other: int
    """Nanoseconds in which it evaluated, or was in another phase."""

    last_step: int
    """The time of the last call of ``should_stop()``."""

    done: int
    """The time at which it had no further step to make."""

    samples: tuple[int, ...]
    """The times of the calls with the numbers 1, 2, 4, 8 and so on."""


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
        number, newest, steps, before = _HEADER.unpack_from(self._memory, self._offset)
        number += 1
        if newest != round:
            steps = before = 0
            self._clear_totals()
        if kind is MarkKind.STEP:
            steps = value
        elif kind is MarkKind.RESTORED:
            before = value - steps
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        check = number ^ now ^ round ^ kind ^ value
        _MARK.pack_into(self._memory, self._place(number), number, now, round, kind, value, check)
        self._add(kind, value, now)
        # Last, so that a counted mark is complete.
        _HEADER.pack_into(self._memory, self._offset, number, round, steps, before)

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
        _, newest, steps, before = _HEADER.unpack_from(self._memory, self._offset)
        return before + steps if newest == round and steps else None

    def rollback(self, round: int) -> tuple[int, int] | None:
        """Return the values of `MarkKind.POISONED` and `MarkKind.ROLLBACK` if these are the newest marks of a round."""
        marks = [mark for mark in self.read(at_most=2) if mark.round == round]
        if [mark.kind for mark in marks] != [MarkKind.POISONED, MarkKind.ROLLBACK]:
            return None
        return marks[0].value, marks[1].value

    def totals(self, round: int) -> RoundTotals | None:
        """Return the totals of a round; None if the newest mark belongs to another one."""
        number, newest, steps, before = _HEADER.unpack_from(self._memory, self._offset)
        if newest != round or not number:
            return None
        all_totals = _TOTALS.unpack_from(self._memory, self._offset + _HEADER.size)
        values = dict(zip(_Place, all_totals, strict=False))
        if values[_Place.PHASE]:
            duration = _DURATION.get(MarkKind(values[_Place.PHASE]), _Place.OTHER)
            values[duration] += max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - values[_Place.PHASE_BEGAN])
        return RoundTotals(
            round=round,
            steps=steps,
            before=before if values[_Place.RESTORED] else None,
            entered=values[_Place.ENTERED],
            group=values[_Place.GROUP],
            restored=values[_Place.RESTORED],
            restored_step=values[_Place.RESTORED_STEP],
            source=Source(values[_Place.SOURCE]),
            saved=values[_Place.SAVED],
            saved_step=values[_Place.SAVED_STEP],
            saves=values[_Place.SAVES],
            saving=values[_Place.SAVING],
            compiling=values[_Place.COMPILING],
            other=values[_Place.OTHER],
            last_step=values[_Place.LAST_STEP],
            done=values[_Place.DONE],
            samples=tuple(all_totals[_Place.FIRST_SAMPLE :][: steps.bit_length()]),
        )

    def _clear_totals(self) -> None:
        begin = self._offset + _HEADER.size
        self._memory[begin : begin + _TOTALS.size] = bytes(_TOTALS.size)

    def _add(self, kind: MarkKind, value: int, now: int) -> None:
        """Add a mark to the totals of its round."""
        if kind is MarkKind.STEP:
            totals = self._offset + _HEADER.size
            _NUMBER.pack_into(self._memory, totals + _LAST_STEP_OFFSET, now)
            if _NUMBER.unpack_from(self._memory, totals + _PHASE_OFFSET)[0]:
                self._put(_Place.DEPTH, 0)
                self._end_phase(now)
            if value & (value - 1) == 0 and 0 < value < 1 << SAMPLES:
                self._put(_Place.FIRST_SAMPLE + value.bit_length() - 1, now)
        elif kind in PHASES:
            self._put(_Place.DEPTH, self._get(_Place.DEPTH) + 1)
            if not self._get(_Place.PHASE):
                self._put(_Place.PHASE_BEGAN, now)
                self._put(_Place.PHASE, kind)
        elif kind is MarkKind.PHASE_ENDED:
            self._put(_Place.DEPTH, max(0, self._get(_Place.DEPTH) - 1))
            self._end_phase(now)
        elif kind in _VALUED:
            self._put(_VALUED[kind], now)
            self._put(_VALUED[kind] + 1, value)
        elif kind is MarkKind.SOURCE:
            self._put(_Place.SOURCE, value)
        elif kind in _TIMED and not self._get(_TIMED[kind]):
            self._put(_TIMED[kind], now)

    def _end_phase(self, now: int) -> None:
        """Add the duration of the outermost phase, unless the worker is still in it."""
        kind = self._get(_Place.PHASE)
        if kind and not self._get(_Place.DEPTH):
            place = _DURATION.get(MarkKind(kind), _Place.OTHER)
            self._put(place, self._get(place) + now - self._get(_Place.PHASE_BEGAN))
            self._put(_Place.SAVES, self._get(_Place.SAVES) + (kind == MarkKind.SAVING))
            self._put(_Place.PHASE, 0)

    def _get(self, place: int) -> int:
        value: int = _NUMBER.unpack_from(self._memory, self._offset + _HEADER.size + place * _NUMBER.size)[0]
        return value

    def _put(self, place: int, value: int) -> None:
        _NUMBER.pack_into(self._memory, self._offset + _HEADER.size + place * _NUMBER.size, value)

    @property
    def _count(self) -> int:
        count: int = _HEADER.unpack_from(self._memory, self._offset)[0]
        return count

    def _place(self, number: int) -> int:
        return self._offset + _HEADER.size + _TOTALS.size + number % CAPACITY * _MARK.size

    def _read(self, number: int) -> Mark | None:
        written, when, round, kind, value, check = _MARK.unpack_from(self._memory, self._place(number))
        if written != number or check != written ^ when ^ round ^ kind ^ value:
            return None
        return Mark(number, when, round, MarkKind(kind), value)
