"""Simulated time: events in order of time, and threads of which one runs at a time, until it waits.

A `Task` replaces a thread for the code under test. It is a greenlet that yields only where it waits. It belongs to a
`Process`, which can be frozen (its events are held) and can end (they are dropped).
"""

import heapq
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

T = TypeVar("T")
Action = Callable[[], None]

_TIMER_SLACK = 50e-6
"""Seconds by which a time-out ends late, as on Linux. Without it, rounding could end a wait before its time."""


class Process:
    """A process. It is frozen, continued and killed as a whole. Its time-outs run at ``rate``: the seconds that pass on
    the clock of its machine in one second."""

    def __init__(self, clock: "Clock", rate: float = 1.0) -> None:
        self._clock = clock
        self._rate = rate
        self._held: list[Action] = []
        self.tasks: list[Task] = []
        self.frozen = self.gone = False

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        """Continue. Events that became due meanwhile happen now, in any order."""
        self.frozen = False
        held, self._held = self._held, []
        for action in held:
            self._clock.after(self._clock.random.uniform(0, 0.2), action, self)

    def end(self) -> None:
        """End the process. No instruction of it runs from now on, except in a task that calls this, until the task
        waits."""
        self.gone = True
        for task in self.tasks:
            task.end()

    def hold(self, action: Action) -> None:
        self._held.append(action)

    def lasting(self, timeout: float) -> float:
        """Return the simulated seconds after which a time-out of ``timeout`` seconds ends in this process."""
        return timeout / self._rate + _TIMER_SLACK


class Clock:
    """The simulated time in seconds, and the pending events. ``random`` draws the small delays."""

    def __init__(self, random: Random) -> None:
        self.now = 0.0
        self.random = random
        self.task: Task | None = None
        """The task that runs at this moment; None outside all tasks."""

        self._broken: Exception | None = None
        self._events: list[tuple[float, int, Action, Process | None]] = []
        self._scheduled = 0
        self.hub: Any = getcurrent()

    def after(self, delay: float, action: Action, owner: Process | None = None) -> None:
        """Execute ``action`` in ``delay`` seconds if its ``owner`` is alive then, and as soon as it is not frozen."""
        self._scheduled += 1
        heapq.heappush(self._events, (self.now + delay, self._scheduled, action, owner))

    def advance(self, until: float) -> None:
        """Execute all events that are due by ``until``."""
        self.hub, events = getcurrent(), self._events
        while events and events[0][0] <= until:
            self.now, _, action, owner = heapq.heappop(events)
            if owner is None:
                action()
            elif owner.frozen:
                owner.hold(action)
            elif not owner.gone:
                action()
            if self._broken is not None:
                raise self._broken
        self.now = until

    def stop(self, error: Exception) -> None:
        """Let `advance` raise ``error`` as soon as the running task yields."""
        self._broken = self._broken or error


class Task:
    """A thread of ``process``. ``entered`` is called before the task continues, each time."""

    def __init__(self, process: Process, body: Action, entered: Action) -> None:
        self._process = process
        self._clock = process._clock
        self._entered = entered
        self._ticket = 0
        self._body = body
        self._greenlet: Any = greenlet(self._run, parent=self._clock.hub)
        process.tasks.append(self)

    def start(self, delay: float = 0.0) -> None:
        self._clock.after(delay, self._resume, self._process)

    def lasting(self, timeout: float) -> float:
        """See `Process.lasting`."""
        return self._process.lasting(timeout)

    def end(self) -> None:
        clock, running = self._clock, self._clock.task
        if not self._greenlet or running is self:
            return
        clock.task = self
        self._entered()  # the task's own cleanup must have no effect
        self._greenlet.parent = getcurrent()
        self._greenlet.throw(GreenletExit)
        clock.task = running
        if running is not None:
            running._entered()

    def pause(self, seconds: float) -> None:
        """Yield for a time."""
        self._clock.after(seconds, self._resume, self._process)
        self._away()

    def park(self, timeout: float | None) -> Action:
        """Return a function that wakes this task once, from the next `wait` on. ``timeout`` wakes it as well."""
        self._ticket += 1
        ticket = self._ticket

        def wake() -> None:
            if self._ticket == ticket:
                self._ticket += 1
                self._resume()

        if timeout is not None:
            self._clock.after(timeout, wake, self._process)
        return lambda: self._clock.after(0.0, wake, self._process)

    def wait(self) -> None:
        """Yield until woken; see `park`."""
        self._away()

    def _away(self) -> None:
        if self._process.gone:
            raise GreenletExit
        self._greenlet.parent = self._clock.hub
        self._clock.hub.switch()

    def _resume(self) -> None:
        self._clock.task = self
        self._entered()
        self._greenlet.switch()
        self._clock.task = None

    def _run(self) -> None:
        try:
            self._body()
        except Exception as error:
            self._clock.stop(error)


class Event:
    """`threading.Event` for tasks of ``clock``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._set = False
        self._waiters: list[Action] = []

    def set(self) -> None:
        self._set = True
        self._wake()

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._wait(None if timeout is None else self._task.lasting(timeout))
        return self._set

    @property
    def _task(self) -> Task:
        assert self._clock.task is not None
        return self._clock.task

    def _wait(self, seconds: float | None) -> None:
        """Wait for at most this number of simulated seconds."""
        task = self._task
        self._waiters.append(task.park(seconds))
        task.wait()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()


class Condition(Event):
    """`threading.Condition` for tasks. It needs no lock, because one task runs at a time."""

    def __enter__(self) -> "Condition":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def notify_all(self) -> None:
        self._wake()

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        deadline = None if timeout is None else self._clock.now + self._task.lasting(timeout)
        while not (result := predicate()):
            left = None if deadline is None else deadline - self._clock.now
            if left is not None and left <= 0:
                break
            self._wait(left)
        return result
