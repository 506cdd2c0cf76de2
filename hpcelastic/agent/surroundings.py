"""What an agent asks those who started it: what a signal means."""

import signal
from typing import Protocol

from hpcelastic.protocol.state import Notice

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WARNINGS = (*STOP, signal.SIGUSR2)
"""Signals that may mean that the node must go."""


class Surroundings(Protocol):
    """A batch system, or whatever else started the agent."""

    turn: float
    """Seconds to wait before asking, in which one who is asked first may have told all the others."""

    repeats: bool
    """Whether a signal may come more than once without meaning more."""

    def meaning(self, signum: int) -> Notice | None:
        """What the signal means; None if the node may stay. May take long, and is called in a thread of its own."""


class Alone:
    """No batch system: who wants the agent to stop says so to it alone."""

    turn = 0.0
    repeats = False

    def __init__(self, grace: float) -> None:
        self._grace = grace

    def meaning(self, signum: int) -> Notice | None:
        return Notice(signal.Signals(signum).name, self._grace) if signum in STOP else None
