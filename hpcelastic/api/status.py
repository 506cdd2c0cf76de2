"""How a run stands, as its directory tells."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcelastic.agent.node import look_for
from hpcelastic.api.jobs import jobs_of
from hpcelastic.api.troubles import troubles
from hpcelastic.health.verdict import Verdict
from hpcelastic.protocol.assignment import assignment
from hpcelastic.protocol.state import Failure, Phase, Stand, State, name_of
from hpcelastic.rendezvous.rendezvous import read_state
from hpcelastic.store.backend import KnownBackend, backend_of
from hpcelastic.store.leases import Lease
from hpcelastic.store.paths import RunPaths


@dataclass(frozen=True)
class NodeStatus:
    """One node of a run."""

    name: str
    stand: str
    """``ready``, ``running``, ``succeeded``, ``failed``, ``left``, or ``silent``: its lease has not moved for long."""

    ranks: str
    """Its ranks in the round that runs, such as ``0..7``; empty if it is in none."""


@dataclass(frozen=True)
class RunStatus:
    """How a run stands."""

    name: str
    directory: Path
    phase: str
    round: int
    reason: str
    world_size: int
    restarts: int
    """Spent of the restart budget."""

    max_restarts: int
    min_nodes: int
    """Nodes that a round needs."""

    nodes: tuple[NodeStatus, ...]
    failures: tuple[Failure, ...]
    jobs: tuple[str, ...]
    """SLURM jobs that were submitted for it."""

    drained: tuple[str, ...] = ()
    """Nodes that must not take part."""

    scaled: int = 0
    """Nodes that a round may have since a person has scaled the run; 0 if nobody has."""

    troubles: Mapping[str, Verdict] = field(default_factory=dict)
    """What went wrong on nodes, by node, and whether it keeps them out."""

    copied: bool = False
    """True where the server that keeps the run does not answer, and this is the newest copy in its directory."""

    @property
    def ended(self) -> bool:
        """True where no further round will come, unless the run is resumed."""
        return Phase(self.phase).final

    @property
    def waits_for(self) -> str:
        """What must happen before workers run, in words; empty where they do, and where none will."""
        if self.phase != Phase.JOINING.value:
            return ""
        ready = sum(node.stand == Stand.READY.value for node in self.nodes)
        if ready < self.min_nodes:
            return f"nodes: {ready} of at least {self.min_nodes} ready"
        return f"round {self.round + 1} to form: {ready} nodes ready"


def read_status(paths: RunPaths) -> RunStatus:
    """How the run in a directory stands, from that alone. StoreError if it can't be read."""
    return status_of(paths, read_state(paths))


def status_of(paths: RunPaths, state: State) -> RunStatus:
    """The same, where its state has been read already."""
    backend = backend_of(paths)
    leases = backend.leases()
    return RunStatus(
        name=state.run_id,
        directory=paths.root,
        phase=state.phase.value,
        round=state.round,
        reason=state.reason,
        world_size=sum(p.local_world_size for p in state.participants),
        restarts=min(state.restarts, state.settings.restarts.max),
        max_restarts=state.settings.restarts.max,
        min_nodes=state.settings.nodes.min,
        nodes=tuple(_node_statuses(state, leases)),
        failures=state.failures,
        jobs=tuple(jobs_of(paths)),
        drained=state.drained,
        scaled=state.target,
        troubles=troubles(paths),
        copied=isinstance(backend, KnownBackend),
    )


def _node_statuses(state: State, leases: Mapping[str, Lease]) -> Iterator[NodeStatus]:
    """The members of the newest round in rank order, then those that want into the next."""
    members = [p.node for p in state.participants]
    waiting = [] if state.phase.final else [node for node in leases if node not in members]
    others = [node for node in waiting if leases[node].member.stand is not Stand.LEFT]
    for node in [*members, *others]:
        part = assignment(state, node)
        ranks = _range(part.first_rank, part.local_world_size) if part else ""
        lease = leases.get(node)
        silent = lease is None or _silent(lease, state)
        if silent and node in others:
            continue  # an incarnation that has gone
        stand = "silent" if silent or lease is None else lease.member.stand.value
        if lease is None and state.phase is Phase.SUCCEEDED:
            stand = Stand.SUCCEEDED.value  # kept in a server that is gone; without all of them it would not have
        yield NodeStatus(name_of(node), stand, ranks)


def _silent(lease: Lease, state: State) -> bool:
    """For display only: times of files and other machines' clocks decide nothing."""
    if state.phase.final:
        return False
    here, alive = look_for(lease.member.process)
    if here:  # there is no need to guess
        return not alive
    try:
        age = time.time() - lease.path.stat().st_ctime  # a renewal gives it another name, and leaves its content
    except OSError as error:
        return not isinstance(error, FileNotFoundError)  # if it has gone, it was renewed just now
    return age > 3 * (state.settings.rendezvous.lease + state.settings.rendezvous.margin)


def _range(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}..{first + count - 1}"
