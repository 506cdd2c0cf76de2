"""Whether anybody is left who could bring a run to its end."""

import time

from hpcelastic.api.jobs import all_local, jobs_of, live_jobs, local_agents
from hpcelastic.api.troubles import bad_nodes
from hpcelastic.errors import RunFailed, SlurmError
from hpcelastic.protocol.state import State
from hpcelastic.store.backend import backend_of
from hpcelastic.store.paths import RunPaths

_SCHEDULER_POLL = 30.0
"""Seconds between two questions to SLURM while no agent gives a sign."""


class Presence:
    """Watches a run from outside: its leases, and where those stand still, the machine and SLURM."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._beats: dict[str, int] = {}
        self._looked = self._moved = time.monotonic()

    def check(self, state: State) -> None:
        """Raise RunFailed if no agent and no SLURM job of the run is left; what is unknown counts as there."""
        now, lease = time.monotonic(), state.settings.rendezvous.lease
        if now - self._looked < lease / 4:
            return
        self._looked = now
        beats = {node: lease.beat for node, lease in backend_of(self._paths).leases().items()}
        if beats != self._beats:
            self._beats, self._moved = beats, now
        patience = lease + state.settings.rendezvous.margin
        if jobs_of(self._paths) or not beats:
            patience = max(patience, _SCHEDULER_POLL)
        if now - self._moved > patience:
            self._moved = now
            if not self._somebody_left():
                where = self._paths.root
                bad = bad_nodes(self._paths)
                why = f" (nodes that were bad: {bad})" if bad else ""
                raise RunFailed(
                    f"{where.name}: no agent and no SLURM job is left{why}; {where} holds its state: resume it"
                )

    def _somebody_left(self) -> bool:
        if local_agents(self._paths):
            return True
        try:
            return bool(live_jobs(self._paths)) if jobs_of(self._paths) else not all_local(self._paths)
        except SlurmError:
            return True
