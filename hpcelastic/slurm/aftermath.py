"""What becomes of a job whose run is over: SLURM must not keep it, whatever has befallen the two meanwhile."""

import contextlib
import sys
import time
from dataclasses import dataclass

from hpcelastic.errors import SlurmError, StoreError
from hpcelastic.protocol.settings import RendezvousSettings
from hpcelastic.protocol.state import Member, Phase, Stand, State
from hpcelastic.rendezvous.rendezvous import read_state
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.environment import SlurmTask
from hpcelastic.store import files
from hpcelastic.store.backend import backend_of
from hpcelastic.store.bounded import bounded
from hpcelastic.store.leases import Lease
from hpcelastic.store.paths import RunPaths

_PATIENCE = 10.0
"""Seconds that an agent which has ended gives the run's directory to show how the run has."""


@dataclass(frozen=True)
class Aftermath:
    """The end of an agent, as far as it concerns its job."""

    paths: RunPaths
    task: SlurmTask
    member: Member
    times: RendezvousSettings

    def see_to_it(self) -> None:
        """Let the job end as its run has ended, and end it if SLURM would keep it."""
        try:
            state, leases = bounded(lambda: (read_state(self.paths), self._leases()), _PATIENCE, str(self.paths.root))
        except StoreError:
            return  # who can't see the run does not end its job
        if not state.phase.final:
            return
        survivors = self._survivors(state, leases)
        # The srun of a job of one node reports this agent alone: a large pool leaves no file for each of its elements.
        if state.phase is Phase.SUCCEEDED and self.task.nodes > 1 and survivors[:1] == [self.member.node]:
            self._tell_the_batch_script()
        if self._batch_node_lost(survivors, leases):
            time.sleep(1.0 + 4 * self.times.poll)  # the others see the end of the run for themselves
            self.end_job("the batch script's node was lost")
        elif self.task.node_id == 0 and self._forgotten():
            self.end_job("SLURM forgot, as its controller was lost, that it had started the job")

    def nobody_left(self) -> bool:
        """True if no agent of our job gives a sign of life, and that of its batch node has never said goodbye."""
        before = self._leases()
        time.sleep(self.times.lease + self.times.margin)
        batch = [lease.member for lease in before if lease.member.order == 0]
        gone = bool(batch) and all(member.stand is not Stand.LEFT for member in batch)
        return gone and [lease.beat for lease in before] == [lease.beat for lease in self._leases()]

    def end_job(self, why: str) -> None:
        """Cancel it."""
        name = self.task.name
        print(f"hpcelastic: {why}; ending the job, or SLURM would keep it", file=sys.stderr)
        try:
            scheduler.cancel_jobs([name])
        except SlurmError as error:  # in a container, say, that has no scancel
            print(f"hpcelastic: {error}; end it yourself: scancel {name}", file=sys.stderr)

    def _survivors(self, state: State, leases: list[Lease]) -> list[str]:
        """The nodes of our job that took part in the last round, by rank."""
        ours = {lease.member.node for lease in leases}
        return [p.node for p in state.participants if p.node in ours]

    def _tell_the_batch_script(self) -> None:
        """Say that the run has succeeded: srun may report a node that was lost, and the job would end as FAILED."""
        path = self.paths.success(self.task.job_id, self.task.restart)

        def publish() -> None:
            files.make_directory(path.parent)
            files.publish(path, b"")

        with contextlib.suppress(StoreError):
            bounded(publish, _PATIENCE, str(path))

    def _batch_node_lost(self, survivors: list[str], leases: list[Lease]) -> bool:
        """True if our job's batch script died with its node. Told to the last-ranked survivor of the job only."""
        if survivors[-1:] != [self.member.node]:
            return False
        batch = [lease.member for lease in leases if lease.member.order == 0]
        return bool(batch) and all(m.node not in survivors and m.stand is not Stand.LEFT for m in batch)

    def _forgotten(self) -> bool:
        """True if SLURM believes that the job, whose agents have just ended, is still to be started."""
        try:
            return scheduler.job_info(self.task.name).state == "PENDING"
        except SlurmError:
            return False

    def _leases(self) -> list[Lease]:
        """Those of our job's agents."""
        leases = backend_of(self.paths).leases()
        return [leases[node] for node in sorted(leases) if leases[node].member.job == self.member.job]
