"""Records incidents of this node and of lost nodes, for later decisions."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from hpcelastic.backends.backend import Backend
from hpcelastic.errors import StoreError
from hpcelastic.health.incidents import Incident, IncidentKind
from hpcelastic.health.memory import record_incident, record_losses
from hpcelastic.health.settings import HealthSettings
from hpcelastic.protocol.state import Failure, Member, Participant, Phase, State
from hpcelastic.storage.paths import RunPaths


class IncidentRecorder:
    """Records incidents in threads without waiting for them, because the filesystem may hang.

    An incident that cannot be written is lost. Nothing is recorded if the settings exclude no nodes.
    """

    def __init__(self, paths: RunPaths, backend: Backend, member: Member, health: HealthSettings) -> None:
        self._paths, self._backend = paths, backend
        self._node, self._machine = member.node, member.machine
        self._health = health
        self._round = 0
        self._members: Sequence[Participant] = ()
        """The members of the last round that this node has observed."""

        self._threads: list[threading.Thread] = []

    def observe(self, state: State) -> None:
        """Record the nodes that were lost before a new round, if this node has rank 0 of that round.

        Only a member of the last round can know them. If none of its members is in the new round, their job has ended.
        """
        if not self._health.exclude or state.phase is not Phase.RUNNING or state.round == self._round:
            return
        before = self._members if state.round == self._round + 1 else ()
        self._round, self._members = state.round, state.participants
        if state.participants[0].node == self._node and any(p.node == self._node for p in before):
            self._in_background(lambda: record_losses(self._paths, self._backend, before, state))

    def record_failure(self, failure: Failure) -> IncidentKind | None:
        """Record the failure of a worker on this node if the machine caused it. Return the kind of the incident."""
        if not self._health.exclude:
            return None
        from hpcelastic.health.causes import classify_failure  # here, because most agents have no failure

        cause = classify_failure(failure.exit_code, failure.message, failure.traceback)
        if cause is not None:
            message = f"rank {failure.rank}: {failure.message}"
            self._record(Incident(self._machine, cause, message, time.time(), failure.round))
        return cause

    def record_hardware(self, message: str) -> bool:
        """Record that hardware of this node is faulty. Return whether incidents are recorded."""
        incident = Incident(self._machine, IncidentKind.HARDWARE, message, time.time(), self._round)
        if self._health.exclude:
            self._record(incident)
        return self._health.exclude

    def enough_others(self, min_nodes: int) -> bool:
        """Return whether the round has at least ``min_nodes`` nodes without this one."""
        return len(self._members) > min_nodes

    def close(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for incidents that are being written."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _record(self, incident: Incident) -> None:
        of_machine = incident.cause is IncidentKind.HARDWARE
        self._in_background(lambda: record_incident(self._paths, self._health, incident, of_machine=of_machine))

    def _in_background(self, action: Callable[[], None]) -> None:
        def run() -> None:
            with contextlib.suppress(StoreError, OSError):
                action()

        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=run, name="incident recorder", daemon=True))
        self._threads[-1].start()
