"""Cleanup of a job whose run is over: the job must end, even if SLURM lost the batch script's node or its own state."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from hpcelastic.backends.backend import Backend
from hpcelastic.errors import SlurmError, StoreError
from hpcelastic.protocol.settings import RendezvousSettings
from hpcelastic.protocol.state import Member, NodeState, Phase, State
from hpcelastic.rendezvous.run import read_state
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.environment import SlurmTask
from hpcelastic.storage import files
from hpcelastic.storage.bounded import bounded
from hpcelastic.storage.leases import Lease
from hpcelastic.storage.paths import RunPaths

T = TypeVar("T")

_TIMEOUT = 10.0
"""Seconds that an agent waits, after its end, for the run's directory to return the state of the run."""


@dataclass(frozen=True)
class JobCleanup:
    """The cleanup of an agent's job after the end of the agent."""

    paths: RunPaths
    backend: Backend
    task: SlurmTask
    member: Member
    settings: RendezvousSettings

    def run(self) -> None:
        """Let the job end with the result of its run. Cancel the job if SLURM would keep it."""
        with contextlib.suppress(StoreError):  # an agent that cannot read the state does not end its job
            self._run()

    def _run(self) -> None:
        state, leases = self._bounded(lambda: (read_state(self.backend), self._leases()))
        if not state.phase.final:
            return
        survivors = self._survivors(state, leases)
        # srun of a one-node job reports this agent alone, so the elements of a large pool need no file each.
        if state.phase is Phase.SUCCEEDED and self.task.nodes > 1 and survivors[:1] == [self.member.node]:
            self._report_success()
        if self._first_node_missing(survivors, leases):
            time.sleep(1.0 + 4 * self.settings.poll)  # the other agents read the end of the run in this time
            self._end_job_of_lost_node(leases, self._bounded(self._leases))
        elif self.task.node_id == 0 and self._pending():
            self.end_job("SLURM's controller failed and lost the information that the job had started")

    def end_abandoned_job(self) -> None:
        """Cancel our job if it has no heartbeat and the node of its batch script was lost. Raises StoreError."""
        before = self._bounded(self._leases)
        time.sleep(max((self.settings.expiry.of(lease.duration) for lease in before), default=0.0))
        now = self._bounded(self._leases)
        if [lease.heartbeat for lease in before] == [lease.heartbeat for lease in now]:
            self._end_job_of_lost_node(before, now)

    def end_job(self, reason: str) -> None:
        """Cancel the job and print ``reason``."""
        print(f"hpcelastic: {reason}; cancelling the job, because SLURM would keep it", file=sys.stderr)
        try:
            scheduler.cancel_jobs([self.task.name])
        except SlurmError as error:  # for example, a container without scancel
            self._advise(str(error))

    def _survivors(self, state: State, leases: list[Lease]) -> list[str]:
        """Return the nodes of our job that took part in the last round, in order of rank."""
        job_nodes = {lease.member.node for lease in leases}
        return [p.node for p in state.participants if p.node in job_nodes]

    def _report_success(self) -> None:
        """Report to the batch script that the run has succeeded.

        srun may report a node that was lost, and without this file the job would end as FAILED.
        """
        path = self.paths.success(self.task.job_id, self.task.restart)

        def publish() -> None:
            files.make_directory(path.parent, within=self.paths.root)
            files.publish(path, b"")

        with contextlib.suppress(StoreError):
            bounded(publish, _TIMEOUT, str(path))

    def _first_node_missing(self, survivors: list[str], leases: list[Lease]) -> bool:
        """Return whether node 0 of our step may be lost with the batch script; False unless we are last in rank."""
        if survivors[-1:] != [self.member.node]:
            return False
        first = [lease.member for lease in _of_first_node(leases)]
        return bool(first) and all(m.node not in survivors and m.node_state is not NodeState.LEFT for m in first)

    def _end_job_of_lost_node(self, before: list[Lease], now: list[Lease]) -> None:
        """Cancel the job if node 0 of our step gave no sign between two readings and runs the job's batch script.

        A step need not contain that node, and only a job with a batch script stays after the end of its steps.
        """
        heartbeats = {lease.member.node: lease.heartbeat for lease in before}
        first = _of_first_node(now)
        if any(lease.heartbeat != heartbeats.get(lease.member.node) for lease in first):
            return
        if any(lease.member.node_state is NodeState.LEFT for lease in first):
            return
        try:
            batch_host = scheduler.job_info(self.task.name).batch_host
        except SlurmError as error:  # for example, a container without scontrol
            self._advise(f"{error}; if SLURM keeps the job after the end of the run")
            return
        if batch_host in {lease.member.machine for lease in first}:
            self.end_job("the batch script's node was lost")

    def _advise(self, problem: str) -> None:
        print(f"hpcelastic: {problem}; cancel the job yourself: scancel {self.task.name}", file=sys.stderr)

    def _pending(self) -> bool:
        """Return whether SLURM shows the job as pending, although its agents have just ended."""
        try:
            return scheduler.job_info(self.task.name).state == "PENDING"
        except SlurmError:
            return False

    def _bounded(self, read: Callable[[], T]) -> T:
        return bounded(read, _TIMEOUT, str(self.paths.root))

    def _leases(self) -> list[Lease]:
        """Return the leases of our job's agents."""
        leases = self.backend.leases()
        return [leases[node] for node in sorted(leases) if leases[node].member.job == self.member.job]


def _of_first_node(leases: Iterable[Lease]) -> list[Lease]:
    """Return the leases of node 0 of a step: that of its agent, and those of agents that died there before."""
    return [lease for lease in leases if lease.member.order == 0]
