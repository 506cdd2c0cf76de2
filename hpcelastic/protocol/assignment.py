"""The assignment of one node in a round: its ranks, and the address of its store.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hpcelastic.protocol.findings import Rollback
from hpcelastic.protocol.rows import column
from hpcelastic.protocol.state import Member, Phase, State


@dataclass(frozen=True)
class Assignment:
    """The part of one node in a round, with all that starting its workers needs."""

    round: int
    group_rank: int
    group_world_size: int
    first_rank: int
    local_world_size: int
    world_size: int
    master_addr: str
    master_port: int
    role: str
    """Role of this node's workers; empty for the default role."""

    role_first_rank: int
    """Index of its first worker among all workers of the role, by rank."""

    role_world_size: int
    """Number of workers of its role on all nodes."""

    seats: tuple[int, ...] = ()
    """The local ranks of its workers, in the order of their ranks. Empty for 0, 1, 2 and so on."""

    early: bool = False
    """True for an estimate, which workers get that start before the node has a place in a round; see `prospect`."""

    collective_failed: bool = False
    """Whether the last round ended because a collective failed without a known cause; see `Failure.collective`."""

    rollback: Rollback | None = None
    """The newest return of the training to an older state, which excludes states."""

    @property
    def local_ranks(self) -> Sequence[int]:
        """The local ranks of its workers, in the order of their ranks."""
        return self.seats or range(self.local_world_size)

    def rank_of(self, local_rank: int) -> int:
        """Return the rank of the worker with this local rank."""
        return self.first_rank + self.local_ranks.index(local_rank)

    def role_rank_of(self, local_rank: int) -> int:
        """Return the index of this worker among all workers of its role."""
        return self.role_first_rank + self.local_ranks.index(local_rank)


def prospect(state: State, member: Member, workers: int) -> Assignment:
    """Return the assignment that ``member`` would have if the running round got it as its last node, with ``workers``.

    Workers that start before they have a place get this estimate.
    """
    sizes, roles = column(state.participants, "local_world_size"), column(state.participants, "role")
    of_role = sum(size for size, role in zip(sizes, roles, strict=True) if role == member.role)
    return Assignment(
        round=state.round,
        group_rank=len(sizes),
        group_world_size=len(sizes) + 1,
        first_rank=sum(sizes),
        local_world_size=workers,
        world_size=sum(sizes) + workers,
        master_addr=member.address,
        master_port=0,
        role=member.role,
        role_first_rank=of_role,
        role_world_size=of_role + workers,
        early=True,
        rollback=state.rollback,
    )


def ranges_of_ranks(state: State) -> dict[str, range]:
    """Return the ranks of each node in the running round; nothing if no round runs. See `assignment`."""
    found, first = {}, 0
    members = state.participants if state.phase is Phase.RUNNING else ()
    for node, size in zip(column(members, "node"), column(members, "local_world_size"), strict=True):
        found[node] = range(first, first := first + size)
    return found


def assignment(state: State, node: str) -> Assignment | None:
    """Return the assignment of ``node`` in the running round; None if no round runs or the node is not in it."""
    if state.phase is not Phase.RUNNING:
        return None
    group_rank = state.ranks.get(node)
    if group_rank is None:
        return None
    sizes, roles = column(state.participants, "local_world_size"), column(state.participants, "role")
    role = roles[group_rank]
    role_sizes = sizes
    if len(set(roles)) > 1:
        role_sizes = [size if other == role else 0 for size, other in zip(sizes, roles, strict=True)]
    return Assignment(
        round=state.round,
        group_rank=group_rank,
        group_world_size=len(sizes),
        first_rank=sum(sizes[:group_rank]),
        local_world_size=sizes[group_rank],
        world_size=sum(sizes),
        master_addr=state.participants[0].address,
        master_port=state.participants[0].port,
        role=role,
        role_first_rank=sum(role_sizes[:group_rank]),
        role_world_size=sum(role_sizes),
        collective_failed=any(f.collective and f.round == state.round - 1 for f in state.failures),
        rollback=state.rollback,
    )
