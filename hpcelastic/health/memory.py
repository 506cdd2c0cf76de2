"""Current verdicts on a run's nodes by the incidents in its directory, and records of nodes lost between two rounds."""

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from hpcelastic.backends.backend import Backend
from hpcelastic.health.incidents import Incident, IncidentKind, forgive, read_incidents, record, record_lost
from hpcelastic.health.node_record import NodeRecord, recorded_incidents
from hpcelastic.health.settings import HealthSettings
from hpcelastic.health.verdict import NodeVerdict, nodes_out, verdicts
from hpcelastic.protocol.state import NodeState, Participant, State
from hpcelastic.storage.paths import RunPaths


def node_verdicts(paths: RunPaths, health: HealthSettings, host: str | None = None) -> Mapping[str, NodeVerdict]:
    """Return the verdict on each node that had an incident, or on one, also by the shared record. Raises StoreError."""
    others = recorded_incidents(health.shared_record, paths.root, health.half_life, host)
    return verdicts([*read_incidents(paths, host), *others], time.time(), health.half_life)


def excluded_nodes(paths: RunPaths, backend: Backend, half_life: float) -> tuple[str, ...]:
    """Return the nodes that the next job should exclude by the incidents of the run.

    The result is empty if all nodes that the run has ever had are bad: then the nodes are not the cause, and some of
    them must be tried.
    """
    out = nodes_out(verdicts(read_incidents(paths), time.time(), half_life))
    if not out:
        return ()
    known = {lease.member.machine for lease in backend.leases().values()}
    return () if known <= set(out) else out


def recorded_nodes(paths: RunPaths, health: HealthSettings) -> set[str]:
    """Return the nodes that are bad by the shared record, without this run's own incidents."""
    others = recorded_incidents(health.shared_record, paths.root, health.half_life)
    return set(nodes_out(verdicts(others, time.time(), health.half_life)))


def record_incident(paths: RunPaths, health: HealthSettings, incident: Incident, *, of_machine: bool) -> None:
    """Record an incident in the run's directory, and also in the shared record if the machine alone is its cause.

    Raises StoreError.
    """
    record(paths, incident)
    if health.shared_record is not None and of_machine:
        NodeRecord(Path(health.shared_record)).add(incident, paths.root)


def forgive_nodes(paths: RunPaths, health: HealthSettings, hosts: Collection[str] | None = None) -> tuple[str, ...]:
    """Forgive the incidents of nodes, or of all nodes of the run, also in the shared record.

    Return the nodes that had any. Raises StoreError.
    """
    forgiven = forgive(paths.incidents, hosts)
    if health.shared_record is not None:
        forgiven |= NodeRecord(Path(health.shared_record)).forgive(forgiven if hosts is None else hosts)
    return tuple(sorted(forgiven))


def record_losses(paths: RunPaths, backend: Backend, before: Sequence[Participant], state: State) -> None:
    """Record the members of the last round, ``before``, that were lost when the round of ``state`` formed.

    A node that leaves publishes its departure. Every other node that is neither in the new round nor standing by has
    died in the last one. If no node of the last round kept its lease, the filesystem is the cause, and no node is
    recorded as fenced. Raises StoreError.
    """
    leases, last = backend.leases(), state.round - 1
    present = {*state.ranks, *state.standbys}
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
