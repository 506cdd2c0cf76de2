"""A signal that may mean that the node must go, until it is known what it means.

One agent of a job asks its surroundings; the others wait their turn, in which the register may show the answer.
"""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from hpcelastic.agent.surroundings import STOP, USER_SIGNALS, Surroundings
from hpcelastic.errors import HpcElasticError
from hpcelastic.protocol.state import Cause, Notice, State


@dataclass(frozen=True)
class Meaning:
    """What a signal means, as the surroundings say."""

    signum: int
    notice: Notice | None
    """Why the node must go; None if it may stay."""


class Warned:
    """What the agent was warned of; ``deliver`` is called in another thread, with what the surroundings say of it."""

    def __init__(
        self, surroundings: Surroundings, deliver: Callable[[Meaning], None], report: Callable[[str], None]
    ) -> None:
        self._surroundings = surroundings
        self._deliver = deliver
        self._report = report
        self.signum: int | None = None
        """The signal whose meaning is not known yet."""

    def came(self, signum: int) -> None:
        """A signal came; ask, unless one is being asked about that says as much."""
        if self.signum is None or (signum in STOP and self.signum not in STOP):
            self.signum = signum
            threading.Thread(target=self._ask, args=(signum,), name="meaning", daemon=True).start()

    def understood(self, meaning: Meaning) -> Notice | None:
        """Why the node must go, as the surroundings say; None if it may stay, or others have said so before."""
        if self.signum != meaning.signum:
            return None
        if meaning.notice is None:
            self.signum = None
        return meaning.notice

    def told_by_others(self, state: State) -> Notice | None:
        """Why the node must go, if who asked first has told all: what ends the round is what we were warned of too.

        Who is first asks in any case: the round may happen to end for something else, as another job's warning.
        """
        if self.signum is None or not state.grace or not self._surroundings.turn:
            return None
        if state.cause is Cause.CHECKPOINT and self.signum in USER_SIGNALS:
            self.signum = None
        return Notice(state.reason, state.grace) if state.cause is Cause.LEAVE else None

    def _ask(self, signum: int) -> None:
        """Called in a thread of its own."""
        time.sleep(self._surroundings.turn)
        if self.signum != signum:
            return
        try:
            notice = self._surroundings.meaning(signum)
        except HpcElasticError as error:  # the next signal is asked about again
            self._report(f"{signal.Signals(signum).name}: {error}")
            notice = None
        self._deliver(Meaning(signum, notice))
