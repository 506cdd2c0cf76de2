"""Servers that do one thing after the other, in virtual time."""

import heapq

from tests.simulation.clock import Clock


class Queue:
    """A resource with ``servers``. Each serves one request at a time, in the order of their arrival."""

    def __init__(self, clock: Clock, servers: int = 1) -> None:
        self._clock = clock
        self._free = [0.0] * servers
        self.busy = 0.0
        """Seconds for which the servers have worked, all together."""

    def take(self, seconds: float, delay: float = 0.0) -> float:
        """Return in how many seconds a request is done that arrives in ``delay`` seconds and takes ``seconds``."""
        self.busy += seconds
        start = max(self._clock.now + delay, self._free[0])
        heapq.heapreplace(self._free, start + seconds)
        return start + seconds - self._clock.now
