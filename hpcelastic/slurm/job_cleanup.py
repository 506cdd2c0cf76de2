"""Cleanup of a job whose run is over: the job must end, even if SLURM lost the batch script's node or its own state."""

import contextlib
import sys
import time
from dataclasses import dataclass

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
        try:
            state, leases = bounded(lambda: (read_state(self.backend), self._leases()), _TIMEOUT, str(self.paths.root))
        except StoreError:
            return  # an agent that cannot read the state does not end its job
        if not state.phase.final:
            return
        survivors = self._survivors(state, leases)
        # srun of a one-node job reports this agent alone, so the elements of a large pool need no file each.
        if state.phase is Phase.SUCCEEDED and self.task.nodes > 1 and survivors[:1] == [self.member.node]:
            self._report_success()
        if self._batch_node_lost(survivors, leases):
            time.sleep(1.0 + 4 * self.settings.poll)  # the other agents read the end of the run in this time
            self.end_job("the batch script's node was lost")
        elif self.task.node_id == 0 and self._pending():
            self.end_job("SLURM's controller failed and lost the information that the job had started")

    def no_agent_alive(self) -> bool:
        """Return whether our job has no heartbeat and the agent of its batch node has not published its departure."""
        before = self._leases()
        time.sleep(max((self.settings.expiry.of(lease.duration) for lease in before), default=0.0))
        batch = [lease.member for lease in before if lease.member.order == 0]
        gone = bool(batch) and all(member.node_state is not NodeState.LEFT for member in batch)
        return gone and [lease.heartbeat for lease in before] == [lease.heartbeat for lease in self._leases()]

    def end_job(self, reason: str) -> None:
        """Cancel the job and print ``reason``."""
        name = self.task.name
        print(f"hpcelastic: {reason}; cancelling the job, because SLURM would keep it", file=sys.stderr)
        try:
            scheduler.cancel_jobs([name])
        except SlurmError as error:  # for example, a container without scancel
            print(f"hpcelastic: {error}; cancel the job yourself: scancel {name}", file=sys.stderr)

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

    def _batch_node_lost(self, survivors: list[str], leases: list[Lease]) -> bool:
        """Return whether the job's batch script died with its node; False unless we are its last-ranked survivor."""
        if survivors[-1:] != [self.member.node]:
            return False
        batch = [lease.member for lease in leases if lease.member.order == 0]
        return bool(batch) and all(m.node not in survivors and m.node_state is not NodeState.LEFT for m in batch)

    def _pending(self) -> bool:
        """Return whether SLURM shows the job as pending, although its agents have just ended."""
        try:
            return scheduler.job_info(self.task.name).state == "PENDING"
        except SlurmError:
            return False

    def _leases(self) -> list[Lease]:
        """Return the leases of our job's agents."""
        leases = self.backend.leases()
        return [leases[node] for node in sorted(leases) if leases[node].member.job == self.member.job]
