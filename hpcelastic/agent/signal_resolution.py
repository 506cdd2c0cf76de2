"""Resolution of a signal that may mean that the node must leave.

One agent of a job asks the batch system first. The others wait, because the register may show the answer meanwhile.
"""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from hpcelastic.agent.batch_system import STOP_SIGNALS, USER_SIGNALS, BatchSystem
from hpcelastic.errors import HpcElasticError
from hpcelastic.protocol.state import Cause, Notice, State


@dataclass(frozen=True)
class SignalResolution:
    """The meaning of a signal, according to the batch system."""

    signum: int
    notice: Notice | None
    """Why the node must leave; None if it may stay."""


class SignalResolver:
    """Resolves signals. ``deliver`` is called in another thread, with the answer of the batch system."""

    def __init__(
        self, batch_system: BatchSystem, deliver: Callable[[SignalResolution], None], report: Callable[[str], None]
    ) -> None:
        self._batch_system = batch_system
        self._deliver = deliver
        self._report = report
        self.signum: int | None = None
        """The signal that is not resolved yet."""

    def resolve(self, signum: int) -> None:
        """Resolve a signal, unless a signal with the same effect is being resolved."""
        if self.signum is None or (signum in STOP_SIGNALS and self.signum not in STOP_SIGNALS):
            self.signum = signum
            threading.Thread(target=self._ask, args=(signum,), name="signal resolution", daemon=True).start()

    def resolved(self, resolution: SignalResolution) -> Notice | None:
        """Return why the node must leave, according to the batch system.

        Return None if it may stay, or if `resolved_by_others` has resolved the signal before.
        """
        if self.signum != resolution.signum:
            return None
        if resolution.notice is None:
            self.signum = None
        return resolution.notice

    def resolved_by_others(self, state: State) -> Notice | None:
        """Return why the node must leave, if the first agent of the job has published it: the round ends for it.

        The first agent asks in any case, because the round may end for another reason, such as another job's signal.
        """
        if self.signum is None or not state.grace or not self._batch_system.query_delay:
            return None
        if state.cause is Cause.CHECKPOINT and self.signum in USER_SIGNALS:
            self.signum = None
        return Notice(state.reason, state.grace) if state.cause is Cause.LEAVE else None

    def _ask(self, signum: int) -> None:
        """Ask the batch system. Runs in its own thread."""
        time.sleep(self._batch_system.query_delay)
        if self.signum != signum:
            return
        try:
            notice = self._batch_system.resolve_signal(signum)
        except Exception as error:  # also a defect: otherwise no further signal would be resolved
            what = error if isinstance(error, HpcElasticError) else f"internal error: {error!r}"
            self._report(f"{signal.Signals(signum).name}: {what}")
            notice = None
        self._deliver(SignalResolution(signum, notice))
