"""What an agent asks those who started it: what a signal means."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hpcelastic.protocol.state import Notice, State

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals by which a batch system warns of an end to come, or a person asks for a checkpoint."""

WARNINGS = (*STOP, *USER_SIGNALS)
"""Signals that may mean that the node must go."""


@dataclass(frozen=True)
class Outlook:
    """Who may still come to a run."""

    coming: int
    """Nodes whose jobs run, and of which no agent has been seen."""

    pending: int
    """Nodes of jobs that wait in the queue."""


class Surroundings(Protocol):
    """A batch system, or whatever else started the agent."""

    turn: float
    """Seconds to wait before asking, in which one who is asked first may have told all the others."""

    repeats: bool
    """Whether a signal may come more than once without meaning more."""

    def meaning(self, signum: int) -> Notice | None:
        """What the signal means; None if the node may stay. May take long, and is called in a thread of its own."""

    def start(self, expect: Callable[[Outlook], None]) -> None:
        """From now on call ``expect``, in another thread, with what is learnt of those who may come."""

    def learned(self, state: State, first: bool) -> None:
        """The run stands so; only the agent that is ``first`` asks questions which all would ask alike."""

    def stop(self) -> None:
        """Ask no more."""

    def others_come(self) -> bool:
        """Whether it is worth while to wait for other nodes. May take long."""

    def without_enough(self) -> Notice | None:
        """What to do where too few nodes are left and no others come; None if there is nothing but to wait."""


class Alone:
    """No batch system: who wants the agent to stop says so to it alone."""

    turn = 0.0
    repeats = False

    def __init__(self, grace: float) -> None:
        self._grace = grace

    def meaning(self, signum: int) -> Notice | None:
        return Notice(signal.Signals(signum).name, self._grace) if signum in STOP else None

    def start(self, expect: Callable[[Outlook], None]) -> None: ...

    def learned(self, state: State, first: bool) -> None: ...

    def stop(self) -> None: ...

    def others_come(self) -> bool:
        return False

    def without_enough(self) -> Notice | None:
        return None
