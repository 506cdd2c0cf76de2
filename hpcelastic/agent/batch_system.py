"""The interface between an agent and the batch system that started it."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from hpcelastic.protocol.events import JobEligible
from hpcelastic.protocol.state import Notice, State

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals with which a batch system announces the end of a job, or a user requests a checkpoint."""

WARNING_SIGNALS = (*STOP_SIGNALS, *USER_SIGNALS)
"""Signals that may mean that the node must leave."""


@dataclass(frozen=True)
class PendingCapacity:
    """Nodes that may still join a run."""

    expected: int
    """Nodes whose jobs run, but whose agents have not been seen yet."""

    pending: int
    """Nodes of jobs that wait in the queue."""


JobNews: TypeAlias = PendingCapacity | JobEligible
"""A message of a batch system about the jobs of a run."""


class BatchSystem(Protocol):
    """A batch system, or another program that started the agent."""

    query_delay: float
    """Seconds to wait before asking. Meanwhile the first agent may have published the answer for all others."""

    repeats_signals: bool
    """Whether a signal may be sent more than once without a further meaning."""

    def resolve_signal(self, signum: int) -> Notice | None:
        """Return the meaning of a signal; None if the node may stay. It may take long, and runs in its own thread."""

    def start(self, deliver: Callable[[JobNews], None]) -> None:
        """From now on call ``deliver``, in another thread, with the pending capacity and the times of the job."""

    def observe(self, state: State, first: bool) -> None:
        """Observe the state of the run. Only the ``first`` agent asks questions that all agents would ask."""

    def stop(self) -> None:
        """Stop asking."""

    def expects_nodes(self) -> bool:
        """Return whether other nodes may still join. It may take long."""

    def shortage_notice(self) -> Notice | None:
        """Return why the node leaves if too few nodes are left and no others come; None to wait in any case."""


class NoBatchSystem:
    """No batch system: a stop signal always means that this agent must stop."""

    query_delay = 0.0
    repeats_signals = False

    def __init__(self, grace: float) -> None:
        self._grace = grace

    def resolve_signal(self, signum: int) -> Notice | None:
        return Notice(signal.Signals(signum).name, self._grace) if signum in STOP_SIGNALS else None

    def start(self, deliver: Callable[[JobNews], None]) -> None: ...

    def observe(self, state: State, first: bool) -> None: ...

    def stop(self) -> None: ...

    def expects_nodes(self) -> bool:
        return False

    def shortage_notice(self) -> Notice | None:
        return None
