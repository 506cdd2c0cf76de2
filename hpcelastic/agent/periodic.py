"""A task that an agent repeats at intervals, in a thread of its own, because the filesystem may hang."""

import contextlib
import threading
import time
from collections.abc import Callable

from hpcelastic.errors import StoreError


class PeriodicTask:
    """Plans a task, and runs it in a thread. A run that lasts longer than the interval is not joined by a second one.

    ``name`` is that of the thread, and ``interval`` is in seconds. The first run is after ``first`` seconds, and the
    pauses then double up to ``interval``. Without ``first`` all pauses are equal. A task may raise StoreError: a
    directory that fails is reported elsewhere.
    """

    def __init__(
        self,
        name: str,
        interval: float,
        clock: Callable[[], float] = time.monotonic,
        first: float | None = None,
    ) -> None:
        self._name, self._interval, self._clock = name, interval, clock
        self._first = self._pause = interval if first is None else first
        """Seconds from the plan to the first run, and between the last run and the next."""

        self._due: float | None = None
        """The time of the next run; None if none is planned."""

        self._thread: threading.Thread | None = None

    @property
    def planned(self) -> bool:
        return self._due is not None

    @property
    def runs(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def plan(self, wanted: bool, *, anew: bool = False) -> None:
        """Plan runs at intervals, or none. ``anew``: the first one after a whole interval from now."""
        if not wanted:
            self._due = None
        elif self._due is None or anew:
            self._pause = self._first
            self._due = self._clock() + self._pause

    def seconds_left(self) -> float | None:
        """Return the seconds until the next run; None if none is planned."""
        return None if self._due is None else max(0.0, self._due - self._clock())

    def is_due(self) -> bool:
        """Return whether a run is due. If it is, plan the next one."""
        now = self._clock()
        if self._due is None or now < self._due:
            return False
        self._pause = min(2 * self._pause, self._interval)
        self._due = now + self._pause
        return True

    def begin(self, task: Callable[[], None]) -> None:
        """Run ``task`` in the thread, unless an earlier one still runs. Returns at once."""
        if not self.runs:
            self._thread = threading.Thread(target=self._run, args=(task,), name=self._name, daemon=True)
            self._thread.start()

    def close(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for the end of a run."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self, task: Callable[[], None]) -> None:
        with contextlib.suppress(StoreError):
            task()
