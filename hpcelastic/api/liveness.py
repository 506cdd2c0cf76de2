"""Detect that no agent and no SLURM job of a run is left."""

import time

from hpcelastic.api.incidents import bad_nodes
from hpcelastic.api.jobs import all_local, jobs_of, live_jobs, local_agents
from hpcelastic.backends.connect import RunReader
from hpcelastic.errors import RunFailed, SlurmError
from hpcelastic.protocol.state import State

_SLURM_POLL_INTERVAL = 30.0
"""Seconds between two queries to SLURM while no heartbeat of an agent changes."""


class LivenessMonitor:
    """Watches a run from outside: its leases, and if these do not change, the processes of this machine and SLURM."""

    def __init__(self, run: RunReader) -> None:
        self._run = run
        self._heartbeats: dict[str, int] = {}
        self._checked_at = self._changed_at = time.monotonic()

    def check(self, state: State) -> None:
        """Raise RunFailed if no agent and no SLURM job of the run is left. An unknown state counts as active."""
        now, times = time.monotonic(), state.settings.rendezvous
        if now - self._checked_at < times.shortest_lease / 4:
            return
        self._checked_at = now
        leases = self._run.backend().leases()
        heartbeats = {node: lease.heartbeat for node, lease in leases.items()}
        if heartbeats != self._heartbeats:
            self._heartbeats, self._changed_at = heartbeats, now
        timeout = max((times.expiry.of(lease.duration) for lease in leases.values()), default=0.0)
        if jobs_of(self._run.paths) or not heartbeats:
            timeout = max(timeout, _SLURM_POLL_INTERVAL)
        if now - self._changed_at > timeout:
            self._changed_at = now
            if not self._has_active_agents():
                where = self._run.paths.root
                bad = bad_nodes(self._run.paths)
                why = f" (bad nodes: {bad})" if bad else ""
                raise RunFailed(
                    f"{where.name}: no agent and no SLURM job is left{why}; resume the run, its state is in {where}"
                )

    def _has_active_agents(self) -> bool:
        paths, backend = self._run.paths, self._run.backend()
        if local_agents(backend):
            return True
        try:
            return bool(live_jobs(paths)) if jobs_of(paths) else not all_local(backend)
        except SlurmError:
            return True
