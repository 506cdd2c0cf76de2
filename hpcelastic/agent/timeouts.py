"""Time-outs of a node: how long it waits for a round, for enough nodes, and for the run's directory to work."""

import time
from collections.abc import Callable
from pathlib import Path

from hpcelastic.errors import HpcElasticError, RendezvousTimeout, StoreError
from hpcelastic.protocol.state import Phase
from hpcelastic.rendezvous.observation import Observation


class Timeouts:
    """Measures how long one agent waits, up to ``timeout`` seconds (`rendezvous.join_timeout`)."""

    def __init__(self, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        self._joining_since: float | None = clock()
        """When the wait for a round began; None while a round runs."""

        self._short_since: float | None = None
        """When this agent first observed too few nodes for a round; None if there are enough."""

        self._failing_since: float | None = None
        """When the run's directory began to fail, or to hang as an expired lease has shown; None if it works."""

        self._last_error: StoreError | None = None
        """The last error of the run's directory."""

    @property
    def failing(self) -> bool:
        """Whether the run's directory fails."""
        return self._failing_since is not None

    @property
    def shortage_duration(self) -> float | None:
        """Seconds for which there have been too few nodes for a round; None if there are enough."""
        return None if self._short_since is None else self._clock() - self._short_since

    def observe(self, observation: Observation) -> None:
        """Record an observation of the run, which also shows that the run's directory works."""
        if self.failing:
            self._joining_since = None  # no node could join meanwhile
        self._failing_since = self._last_error = None
        self._joining_since = self._updated(self._joining_since, observation.state.phase is Phase.JOINING)
        self._short_since = self._updated(self._short_since, observation.short)

    def mark_unresponsive(self) -> None:
        """Record that the lease has expired: the directory may hang."""
        self._failing_since = self._updated(self._failing_since, True)

    def record_error(self, error: StoreError) -> bool:
        """Record an error of the directory. Return True if it is the first since the directory worked."""
        first, self._last_error = self._last_error is None, error
        self.mark_unresponsive()
        return first

    def remaining(self, training: bool) -> float | None:
        """Return the seconds until the wait is too long; None if the node does not wait.

        A node that is ``training`` waits only for the run's directory.
        """
        since = self._joining_since if self._failing_since is None and not training else self._failing_since
        return None if since is None else max(0.0, since + self._timeout - self._clock())

    def restart(self) -> None:
        """Wait for a round as long once more, because other nodes may still join."""
        self._joining_since = self._clock()

    def timeout_error(self, directory: Path, reason: str) -> HpcElasticError:
        """Return the error to raise after a time-out; ``reason`` is what the run waited for."""
        limit = f"{self._timeout:g} s (rendezvous.join_timeout)"
        if not self.failing:
            return RendezvousTimeout(f"{reason}; no round formed in {limit}")
        problem = f"{directory}: could not be used for {limit}: {self._last_error or 'it did not answer'}"
        return StoreError(f"{problem}; once that is fixed, continue the run with --resume")

    def _updated(self, since: float | None, lasts: bool) -> float | None:
        if not lasts:
            return None
        return self._clock() if since is None else since
