"""The progress of one worker, and how long it may make none.

Pure: it is told the time that has passed, and what the worker has done. A worker that writes a mark at each step has a
limit that follows from its own steps. Another worker makes progress as long as it begins collectives.
"""

from collections import deque
from collections.abc import Sequence

from hpcelastic.agent.settings import HangSettings
from hpcelastic.ipc.marks import PHASES, Mark, MarkKind

STEPS = 100
"""Number of the newest steps from which the limit follows."""

_EXAMINATION, _EXAMINATION_PART = 0.7, 0.05
"""An examination begins so many seconds before a limit ends, or this part of the limit before it ends if that is less.
It takes about this long, so a hang is named when its limit ends."""

_ENDS = (MarkKind.STOPPING, MarkKind.PARKED, MarkKind.DONE)
"""After such a mark the worker has no step to make in its round."""


class WorkerProgress:
    """The progress of a worker in one round."""

    def __init__(self, settings: HangSettings) -> None:
        self._settings = settings
        self._newest: Mark | None = None
        self._steps = 0
        """The number of the newest step; 0 before the first."""

        self._step: Mark | None = None
        """The mark of the newest step, if no phase has begun since."""

        self._durations: deque[float] = deque(maxlen=STEPS)
        """Durations of the newest steps in which there was no phase, in seconds."""

        self._phases: list[float] = []
        """The limits of the phases in which the worker is, the outermost first."""

        self._collectives: tuple[object, ...] = ()
        self.still = 0.0
        """Seconds without any progress, in which the agent has run."""

    @property
    def newest(self) -> int:
        """The number of the newest mark that is known."""
        return 0 if self._newest is None else self._newest.number

    @property
    def has_steps(self) -> bool:
        """Whether the worker writes a mark at each step."""
        return self._steps > 0

    @property
    def steps(self) -> int | None:
        """The number of the newest step; None before the first, and in a phase."""
        return None if self._phases or not self.has_steps else self._steps

    @property
    def limit(self) -> float | None:
        """Seconds for which the worker may make no progress; None if nothing is expected of it."""
        settings = self._settings
        if self._newest is not None and self._newest.kind in _ENDS:
            return None
        if self._phases:
            return self._phases[-1]
        if not self.has_steps:
            return settings.without_marks
        if self._steps == 1:
            return settings.first_step
        return max(settings.min_limit, settings.factor * max(self._durations, default=0.0))

    @property
    def until_examined(self) -> float | None:
        """Seconds without progress after which the worker is examined; None if nothing is expected of it."""
        limit = self.limit
        return None if limit is None else examined_at(limit) - self.still

    @property
    def is_overdue(self) -> bool:
        """Whether the worker has made no progress for about as long as it may."""
        left = self.until_examined
        return left is not None and left <= 0.0

    def observe(self, passed: float, marks: Sequence[Mark], collectives: tuple[object, ...], age: float = 0.0) -> None:
        """Take account of ``passed`` seconds, and of what the worker has done in them: its marks of this round.

        ``age`` is the number of seconds since the newest of these marks.
        """
        if marks:
            self.still = min(passed, age)
        elif collectives != self._collectives:
            self.still = 0.0
        else:
            self.still += passed
        self._collectives = collectives
        for mark in marks:
            self._add(mark)

    def _add(self, mark: Mark) -> None:
        self._newest = mark
        if mark.kind is MarkKind.STEP:
            if self._step is not None:
                self._durations.append((mark.time - self._step.time) / 1e9)
            self._step, self._steps = mark, mark.value
            self._phases.clear()
        elif mark.kind in PHASES:
            self._step = None
            self._phases.append(mark.value or self._settings.phase)
        elif mark.kind is MarkKind.PHASE_ENDED and self._phases:
            self._phases.pop()


def examined_at(limit: float) -> float:
    """Return the seconds without progress after which a worker is examined whose limit has ``limit`` seconds."""
    return limit - min(_EXAMINATION, _EXAMINATION_PART * limit)
