"""Current verdicts on a run's nodes by the incidents in its directory, and records of nodes lost between two rounds."""

import time
from collections.abc import Mapping, Sequence

from hpcelastic.backends.backend import Backend
from hpcelastic.health.incidents import IncidentKind, read_incidents, record_lost
from hpcelastic.health.verdict import NodeVerdict, verdicts
from hpcelastic.protocol.state import NodeState, Participant, State
from hpcelastic.storage.paths import RunPaths


def node_verdicts(paths: RunPaths, half_life: float, host: str | None = None) -> Mapping[str, NodeVerdict]:
    """Return the verdict on each node that had an incident, or on one; ``half_life`` in seconds. Raises StoreError."""
    return verdicts(read_incidents(paths, host), time.time(), half_life)


def excluded_nodes(paths: RunPaths, backend: Backend, half_life: float) -> tuple[str, ...]:
    """Return the nodes that the next job should exclude.

    The result is empty if all nodes that the run has ever had are bad: then the nodes are not the cause, and some of
    them must be tried.
    """
    out = [host for host, verdict in node_verdicts(paths, half_life).items() if verdict.out]
    if not out:
        return ()
    known = {lease.member.machine for lease in backend.leases().values()}
    return () if known <= set(out) else tuple(out)


def record_losses(paths: RunPaths, backend: Backend, before: Sequence[Participant], state: State) -> None:
    """Record the members of the last round, ``before``, that were lost when the round of ``state`` formed.

    A node that leaves publishes its departure. Every other node that is neither in the new round nor standing by has
    died in the last one. If no node of the last round kept its lease, the filesystem is the cause, and no node is
    recorded as fenced. Raises StoreError.
    """
    leases, last = backend.leases(), state.round - 1
    present = {p.node for p in state.participants} | set(state.standbys)
    members = {node: lease.member for node, lease in leases.items()}
    lost = [
        p
        for p in before
        if p.node not in present and not (p.node in members and members[p.node].node_state is NodeState.LEFT)
    ]
    fenced = [p for p in before if p.node in present and p.node in members and members[p.node].fenced == last]
    for machine in {members[p.node].machine if p.node in members else p.name for p in lost}:
        record_lost(paths, machine, last, f"was lost in round {last}")
    for machine in {members[p.node].machine for p in fenced} if len(lost) + len(fenced) < len(before) else ():
        record_lost(paths, machine, last, f"could not renew its lease in round {last}", IncidentKind.FENCED)
