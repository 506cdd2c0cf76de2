"""Servers that do one thing after the other, in virtual time."""

import heapq
import time

from tests.simulation.clock import Clock


class Queue:
    """A resource with ``servers``. Each serves one request at a time, in the order of their arrival."""

    def __init__(self, clock: Clock, servers: int = 1) -> None:
        self._clock = clock
        self._free = [0.0] * servers
        self.busy = 0.0
        """Seconds for which the servers have worked, all together, with the requests that wait."""

    def take(self, seconds: float, delay: float = 0.0) -> float:
        """Return in how many seconds a request is done that arrives in ``delay`` seconds and takes ``seconds``."""
        self.busy += seconds
        start = max(self._clock.now + delay, self._free[0])
        heapq.heapreplace(self._free, start + seconds)
        return start + seconds - self._clock.now

    @property
    def done(self) -> float:
        """Seconds for which the servers have worked until now, all together, if no request came with a delay."""
        return self.busy - sum(max(0.0, free - self._clock.now) for free in self._free)


class Meter:
    """Measures the processor time that the code of one node takes, in relation to ``speed``."""

    def __init__(self, processor: Queue, speed: float) -> None:
        self.processor, self._speed = processor, speed
        self.used = 0.0
        """Seconds in all."""

        self._since = 0.0

    def resume(self) -> None:
        """The code of the node runs from now on. What the model has executed before takes no time of the node."""
        self._since = time.thread_time()

    def take(self, extra: float) -> float:
        """Take the processor for what the node has executed until now, and ``extra``. Return how long that takes."""
        seconds = (time.thread_time() - self._since) * self._speed + extra
        self.resume()
        self.used += seconds
        return self.processor.take(seconds)
