"""The totals of a worker in a round, in memory that it shares with its agent.

The worker updates them with each mark. They have a fixed size, whatever the number of steps.
"""

import mmap
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from hpcelastic.ipc.mark_kinds import PHASES, MarkKind, Source, loss_of

SAMPLES = 24
"""Number of steps whose times are kept: those with the numbers 1, 2, 4, 8 and so on."""

LOSSES = 48
"""Number of losses that are kept, beside the newest one."""

_NUMBER = struct.Struct("q")


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

    PHASE_BEGAN = 10
    """The time at which the outermost phase began in which the worker is."""

    DEPTH = 11
    """The number of phases that have begun and have not ended."""

    SAVES = 12
    """The number of saves that have ended."""

    DONE = 13
    TOTAL = 14
    LOSSES = 15
    """The number of losses that the worker has told."""

    STRIDE = 16
    """Every so many losses one is kept; 0 means 1."""

    FIRST_SAMPLE = 17


_FIRST_LOSS = _Place.FIRST_SAMPLE + SAMPLES
_TOTALS = struct.Struct(f"{_FIRST_LOSS + 2 * (LOSSES + 1)}q")
"""The totals in the order of `_Place`, the times of the sampled steps, and pairs of a step and a loss."""

TOTALS_SIZE = _TOTALS.size
"""Bytes of the totals."""

_DURATION = {MarkKind.SAVING: _Place.SAVING, MarkKind.COMPILING: _Place.COMPILING}
"""The place of the duration of each kind of phase; `_Place.OTHER` for all others."""

_TIMED = {MarkKind.ENTERED: _Place.ENTERED, MarkKind.GROUP: _Place.GROUP, MarkKind.DONE: _Place.DONE}
"""Marks of which the first one counts."""

_LATEST = {MarkKind.SOURCE: _Place.SOURCE, MarkKind.TOTAL: _Place.TOTAL}
"""Marks of which the last value counts."""

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

    total: int
    """The number of steps of the training in all; 0 if the worker has not told it."""

    losses: tuple[tuple[int, float], ...]
    """Steps and losses, evenly chosen among all that the worker has told, and the newest one."""


class Steps(NamedTuple):
    """The numbers in the header of a ring."""

    steps: int
    before: int
    last_step: int
    phase: int
    """The kind of the outermost phase in which the worker is; 0 if it is in none."""


class TotalsMemory:
    """The totals of the newest round of a worker, in ``memory`` from ``offset`` on."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._memory, self._offset = memory, offset

    def read(self, round: int, header: Steps) -> RoundTotals:
        """Return the totals."""
        all_totals = _TOTALS.unpack_from(self._memory, self._offset)
        values = dict(zip(_Place, all_totals, strict=False))
        if header.phase:
            duration = _DURATION.get(MarkKind(header.phase), _Place.OTHER)
            values[duration] += max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - values[_Place.PHASE_BEGAN])
        return RoundTotals(
            round=round,
            steps=header.steps,
            before=header.before if values[_Place.RESTORED] else None,
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
            last_step=header.last_step,
            done=values[_Place.DONE],
            samples=tuple(all_totals[_Place.FIRST_SAMPLE : _FIRST_LOSS][: header.steps.bit_length()]),
            total=values[_Place.TOTAL],
            losses=self._losses(all_totals),
        )

    def clear(self) -> None:
        """Begin another round."""
        self._memory[self._offset : self._offset + TOTALS_SIZE] = bytes(TOTALS_SIZE)

    def sample(self, step: int, now: int) -> None:
        """Keep the time of a step with a number that is a power of 2."""
        if 0 < step < 1 << SAMPLES:
            self._put(_Place.FIRST_SAMPLE + step.bit_length() - 1, now)

    def end_phases(self, phase: int, now: int) -> int:
        """End all phases, of which the outermost one has the kind ``phase``. Return 0."""
        self._put(_Place.DEPTH, 0)
        return self._end_phase(phase, now)

    def add(self, kind: MarkKind, value: int, now: int, step: int, phase: int) -> int:
        """Add a mark of any other kind than a step. Return the kind of the outermost phase after it, or 0.

        ``step`` is the number of steps that the training has begun, in all rounds.
        """
        if kind in PHASES:
            self._put(_Place.DEPTH, self._get(_Place.DEPTH) + 1)
            if not phase:
                self._put(_Place.PHASE_BEGAN, now)
                return kind
        elif kind is MarkKind.PHASE_ENDED:
            self._put(_Place.DEPTH, max(0, self._get(_Place.DEPTH) - 1))
            return self._end_phase(phase, now)
        elif kind in _VALUED:
            self._put(_VALUED[kind], now)
            self._put(_VALUED[kind] + 1, value)
        elif kind in _LATEST:
            self._put(_LATEST[kind], value)
        elif kind is MarkKind.LOSS:
            self._add_loss(step, value)
        elif kind in _TIMED and not self._get(_TIMED[kind]):
            self._put(_TIMED[kind], now)
        return phase

    def _add_loss(self, step: int, bits: int) -> None:
        """Keep a loss if it is one of the evenly chosen ones. The last place has the newest one."""
        number, stride = self._get(_Place.LOSSES), self._get(_Place.STRIDE) or 1
        kept = -(-number // stride)
        if kept == LOSSES and number % stride == 0:  # all places are used: keep every second one from now on
            pairs = [(self._get(_FIRST_LOSS + 2 * i), self._get(_FIRST_LOSS + 2 * i + 1)) for i in range(0, LOSSES, 2)]
            for i, pair in enumerate(pairs):
                self._put_loss(i, *pair)
            stride, kept = 2 * stride, LOSSES // 2
            self._put(_Place.STRIDE, stride)
        if number % stride == 0:
            self._put_loss(kept, step, bits)
        self._put_loss(LOSSES, step, bits)
        self._put(_Place.LOSSES, number + 1)

    def _put_loss(self, index: int, step: int, bits: int) -> None:
        self._put(_FIRST_LOSS + 2 * index, step)
        self._put(_FIRST_LOSS + 2 * index + 1, bits)

    def _losses(self, values: Sequence[int]) -> tuple[tuple[int, float], ...]:
        number, stride = values[_Place.LOSSES], values[_Place.STRIDE] or 1
        places = [*range(-(-number // stride)), *([LOSSES] if number else [])]
        pairs = [(values[_FIRST_LOSS + 2 * i], loss_of(values[_FIRST_LOSS + 2 * i + 1])) for i in places]
        return tuple(dict(pairs).items())

    def _end_phase(self, phase: int, now: int) -> int:
        """Add the duration of the outermost phase, unless the worker is still in it. Return the phase after that."""
        if not phase or self._get(_Place.DEPTH):
            return phase
        place = _DURATION.get(MarkKind(phase), _Place.OTHER)
        self._put(place, self._get(place) + now - self._get(_Place.PHASE_BEGAN))
        self._put(_Place.SAVES, self._get(_Place.SAVES) + (phase == MarkKind.SAVING))
        return 0

    def _get(self, place: int) -> int:
        value: int = _NUMBER.unpack_from(self._memory, self._offset + place * _NUMBER.size)[0]
        return value

    def _put(self, place: int, value: int) -> None:
        _NUMBER.pack_into(self._memory, self._offset + place * _NUMBER.size, value)
