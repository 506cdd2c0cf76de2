"""What a run's directory remembers of its nodes, as it counts now; and what a new round shows of the last one's."""

import time
from collections.abc import Mapping, Sequence

from hpcelastic.health.incidents import Trouble, note_lost, read_incidents
from hpcelastic.health.verdict import Verdict, verdicts
from hpcelastic.protocol.state import Participant, Stand, State
from hpcelastic.store.backend import backend_of
from hpcelastic.store.paths import RunPaths


def remembered(paths: RunPaths, half_life: float, host: str | None = None) -> Mapping[str, Verdict]:
    """The verdict on each node that had an incident, or on one; ``half_life`` in seconds. Raises StoreError."""
    return verdicts(read_incidents(paths, host), time.time(), half_life)


def left_out(paths: RunPaths, half_life: float) -> tuple[str, ...]:
    """The nodes that the next job should do without.

    None if that were all that the run has ever had: then it is not the nodes, and some must be tried.
    """
    out = [host for host, verdict in remembered(paths, half_life).items() if verdict.out]
    if not out:
        return ()
    known = {lease.member.machine for lease in backend_of(paths).leases().values()}
    return () if known <= set(out) else tuple(out)


def note_losses(paths: RunPaths, before: Sequence[Participant], state: State) -> None:
    """Note which members of the last round, ``before``, were lost when that of ``state`` formed; raises StoreError.

    Who has left has said so; all others that are neither in the new round nor standing by have died in the last one.
    A lease that ran out everywhere was the filesystem's fault, and no node's.
    """
    leases, last = backend_of(paths).leases(), state.round - 1
    here = {p.node for p in state.participants} | set(state.standbys)
    said = {node: lease.member for node, lease in leases.items()}
    gone = [p for p in before if p.node not in here and not (p.node in said and said[p.node].stand is Stand.LEFT)]
    fenced = [p for p in before if p.node in here and p.node in said and said[p.node].fenced == last]
    for machine in {said[p.node].machine if p.node in said else p.name for p in gone}:
        note_lost(paths, machine, last, f"was lost in round {last}")
    for machine in {said[p.node].machine for p in fenced} if len(gone) + len(fenced) < len(before) else ():
        note_lost(paths, machine, last, f"could not renew its lease in round {last}", Trouble.FENCED)
