"""The status of a run, from its directory."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcelastic.agent.member import process_status
from hpcelastic.api.incidents import incidents
from hpcelastic.api.jobs import is_local, jobs_of
from hpcelastic.api.progress import Progress, read_progress
from hpcelastic.backends.backend import Backend
from hpcelastic.backends.connect import LastStateBackend, RunReader
from hpcelastic.health.verdict import NodeVerdict
from hpcelastic.protocol.assignment import ranges_of_ranks
from hpcelastic.protocol.budget import has_crash_loop
from hpcelastic.protocol.findings import Slow
from hpcelastic.protocol.state import Failure, NodeState, Phase, State, name_of
from hpcelastic.rendezvous.run import read_state
from hpcelastic.storage.leases import Lease
from hpcelastic.storage.paths import RunPaths


@dataclass(frozen=True)
class NodeStatus:
    """One node of a run."""

    name: str
    node_state: str
    """``ready``, ``running``, ``succeeded``, ``failed``, ``left``, or ``silent``: no heartbeat for a long time."""

    ranks: str
    """Its ranks in the current round, such as ``0..7``; empty if it has none."""

    agent_restarts: int = 0
    """Number of restarts of its agent since SLURM started its job; 0 outside of SLURM."""

    starting: int = 0
    """Number of its workers that are starting without a place in the round."""

    @property
    def part(self) -> str:
        """Its part in the current round, as text; empty if it has none."""
        ranks = f"ranks {self.ranks}" if self.ranks else ""
        workers = f"{self.starting} worker{'s' * (self.starting > 1)} starting" if self.starting else ""
        return ", ".join(text for text in (ranks, workers) if text)


@dataclass(frozen=True)
class RunStatus:
    """The status of a run."""

    name: str
    directory: Path
    phase: str
    round: int
    reason: str
    world_size: int
    restarts: int
    """Used restarts of the restart budget."""

    max_restarts: int
    min_nodes: int
    """Minimum number of nodes of a round."""

    nodes: tuple[NodeStatus, ...]
    failures: tuple[Failure, ...]
    jobs: tuple[str, ...]
    """SLURM jobs that were submitted for the run."""

    drained: tuple[str, ...] = ()
    """Nodes that must not join."""

    scaled: int = 0
    """Maximum number of nodes of a round after ``scale``; 0 if the run was not scaled."""

    crash_loop: bool = False
    """True if the run has ended because the same error occurred in the same step repeatedly."""

    hang: str = ""
    """The newest verdict on a round that made no progress, and what followed; empty if there is none."""

    stragglers: str = ""
    """The ranks that the others wait for in each step of the running round, in one line; empty if there are none."""

    slow_ranks: tuple[int, ...] = ()
    """The ranks that `stragglers` names."""

    incidents: Mapping[str, NodeVerdict] = field(default_factory=dict)
    """Incidents by node, and whether they exclude the node."""

    progress: Progress | None = None
    """The progress of the training; None if its script writes no progress marks, and before the first ones."""

    copied: bool = False
    """True if the server of the run does not answer, and this is the newest copy in the run's directory."""

    @property
    def ended(self) -> bool:
        """True if no further round will follow, unless the run is resumed."""
        return Phase(self.phase).final

    @property
    def waits_for(self) -> str:
        """The condition for the start of workers, as text; empty if workers run or the run has ended."""
        if self.phase != Phase.JOINING.value:
            return ""
        ready = sum(node.node_state == NodeState.READY.value for node in self.nodes)
        if ready < self.min_nodes:
            return f"nodes: {ready} of at least {self.min_nodes} ready"
        return f"round {self.round + 1} to form: {ready} nodes ready"


def read_status(run: RunReader) -> RunStatus:
    """Return the status of a run, from its directory and its backend only. Raises StoreError if it cannot be read."""
    backend = run.backend()
    return status_of(run.paths, backend, read_state(backend))


def status_of(paths: RunPaths, backend: Backend, state: State) -> RunStatus:
    """Return the status of a run whose ``state`` has been read from ``backend`` already."""
    leases = backend.leases()
    if any(is_local(lease.member) or not lease.member.job for lease in leases.values()):
        leases = backend.leases(processes=True)  # perhaps they were on this machine, which knows whether they are alive
    slow = _stragglers(state)
    return RunStatus(
        name=state.run_id,
        directory=paths.root,
        phase=state.phase.value,
        round=state.round,
        reason=state.reason,
        world_size=state.world_size,
        restarts=min(state.restarts, state.settings.restarts.max),
        max_restarts=state.settings.restarts.max,
        min_nodes=state.settings.nodes.min,
        nodes=tuple(_node_statuses(state, leases)),
        failures=state.failures,
        jobs=tuple(jobs_of(paths)),
        drained=state.drained,
        scaled=state.target,
        crash_loop=has_crash_loop(state),
        hang=_hang(state),
        stragglers=slow.text if slow else "",
        slow_ranks=slow.ranks if slow else (),
        incidents=incidents(paths),
        progress=read_progress(paths),
        copied=isinstance(backend, LastStateBackend),
    )


def _hang(state: State) -> str:
    hang = state.hang
    if hang is None or hang.action in ("", "none"):
        return ""
    return f"round {hang.round}: {hang.verdict} ({hang.action})"


def _stragglers(state: State) -> Slow | None:
    """Return the stragglers of the running round; None if there are none."""
    slow = state.slow
    if slow is None or not slow.text or slow.round != state.round or state.phase is not Phase.RUNNING:
        return None
    return slow


def _node_statuses(state: State, leases: Mapping[str, Lease]) -> Iterator[NodeStatus]:
    """Yield the members of the newest round in rank order, then the nodes that wait for the next round."""
    waiting = [] if state.phase.final else [node for node in leases if node not in state.ranks]
    others = [node for node in waiting if leases[node].member.node_state is not NodeState.LEFT]
    dead = {node for lease in leases.values() for node in lease.member.dead}
    ranks_of = ranges_of_ranks(state)
    watched = state.phase is Phase.RUNNING and _any_renewed(leases, state)
    for node in [*state.ranks, *others]:
        ranks = _range(ranks_of[node]) if node in ranks_of else ""
        lease = leases.get(node)
        silent = lease is None or node in dead or _silent(lease, state, watched)
        if silent and node not in state.ranks:
            continue  # a dead incarnation
        node_state = "silent" if silent or lease is None else lease.member.node_state.value
        if lease is None and state.phase is Phase.SUCCEEDED:
            # The leases were on a server that has ended. The run has succeeded, so every member has.
            node_state = NodeState.SUCCEEDED.value
        starting = 0 if silent or lease is None or state.phase.final else lease.member.starting
        yield NodeStatus(name_of(node), node_state, ranks, _agent_restarts(node, leases), starting)


def _agent_restarts(node: str, leases: Mapping[str, Lease]) -> int:
    """Count the earlier agents of the same node in the same start of a job."""
    if node not in leases or not (job := leases[node].member.job):
        return 0
    before = (leases[dead].member for dead in leases[node].member.dead if dead in leases)
    return sum((member.job, member.name) == (job, name_of(node)) for member in before)


def _silent(lease: Lease, state: State, watched: bool) -> bool:
    """True if the node seems dead. If it is ``watched``, the other nodes would know that.

    For display only: it uses file times and clocks of other machines.
    """
    if state.phase.final:
        return False
    here, alive = process_status(lease.member.process)
    if here:  # the process is on this machine
        return not alive
    return not (watched and lease.member.node in state.ranks) and not _is_fresh(lease.path, lease, state)


def _any_renewed(leases: Mapping[str, Lease], state: State) -> bool:
    """True if some node has renewed its lease a moment ago. Each renewal changes the time of the directory."""
    lease = next(iter(leases.values()), None)
    return lease is not None and _is_fresh(lease.path.parent, lease, state)


def _is_fresh(path: Path, lease: Lease, state: State) -> bool:
    """Return whether ``path`` was changed, or renamed, within three times the life of ``lease``."""
    try:
        age = time.time() - path.stat().st_ctime
    except OSError as error:
        return isinstance(error, FileNotFoundError)  # it was renewed just now
    return age <= 3 * state.settings.rendezvous.expiry.of(lease.duration)


def _range(ranks: range) -> str:
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}..{ranks[-1]}"
