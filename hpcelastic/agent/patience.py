"""How long a node has waited: for a round to form, for enough nodes, for the run's directory to answer."""

import time
from collections.abc import Callable
from pathlib import Path

from hpcelastic.errors import HpcElasticError, RendezvousTimeout, StoreError
from hpcelastic.protocol.state import Phase
from hpcelastic.rendezvous.rendezvous import Outcome


class Patience:
    """Counts what one agent waits for, up to ``timeout`` seconds (`rendezvous.join_timeout`)."""

    def __init__(self, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        self._joining: float | None = clock()
        """Since when no round runs; None while one does."""

        self._short: float | None = None
        """Since when there are too few nodes for a round, as far as this one has looked."""

        self._failing: float | None = None
        """Since when the run's directory fails or, as the fence has shown, hangs."""

        self._why: StoreError | None = None
        """What was last wrong with it."""

    @property
    def troubled(self) -> bool:
        """Whether the run's directory fails."""
        return self._failing is not None

    @property
    def short_for(self) -> float | None:
        """Seconds for which there have been too few nodes for a round; None if there are not."""
        return None if self._short is None else self._clock() - self._short

    def learned(self, outcome: Outcome) -> None:
        """The run's directory works, and this is how the run stands."""
        if self.troubled:
            self._joining = None  # nobody could join meanwhile
        self._failing = self._why = None
        self._joining = self._since(self._joining, outcome.state.phase is Phase.JOINING)
        self._short = self._since(self._short, outcome.short)

    def doubt(self) -> None:
        """The lease has run out: the directory may hang."""
        self._failing = self._since(self._failing, True)

    def failed(self, error: StoreError) -> bool:
        """The directory fails; True if that is news."""
        news, self._why = self._why is None, error
        self.doubt()
        return news

    def left(self, trains: bool) -> float | None:
        """Seconds until the wait gets too long; None if there is none, as where the node ``trains`` without trouble."""
        since = self._joining if self._failing is None and not trains else self._failing
        return None if since is None else max(0.0, since + self._timeout - self._clock())

    def begin_again(self) -> None:
        """Others may still come: wait for them as long once more."""
        self._joining = self._clock()

    def lost(self, directory: Path, reason: str) -> HpcElasticError:
        """What to raise once it has got too long; ``reason`` is what the run waited for."""
        limit = f"{self._timeout:g} s (rendezvous.join_timeout)"
        if not self.troubled:
            return RendezvousTimeout(f"{reason}; no round formed in {limit}")
        what = f"{directory}: could not be used for {limit}: {self._why or 'it did not answer'}"
        return StoreError(f"{what}; once that is put right, continue the run with --resume")

    def _since(self, since: float | None, lasts: bool) -> float | None:
        if not lasts:
            return None
        return self._clock() if since is None else since
