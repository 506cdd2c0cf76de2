"""The assignment of one node in a round: its ranks, and the address of its store.

Pure.
"""

from dataclasses import dataclass

from hpcelastic.protocol.state import Phase, State


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


def assignment(state: State, node: str) -> Assignment | None:
    """Return the assignment of ``node`` in the running round; None if no round runs or the node is not in it."""
    if state.phase is not Phase.RUNNING:
        return None
    group_rank = next((i for i, p in enumerate(state.participants) if p.node == node), None)
    if group_rank is None:
        return None
    sizes = [p.local_world_size for p in state.participants]
    role = state.participants[group_rank].role
    role_sizes = [p.local_world_size if p.role == role else 0 for p in state.participants]
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
    )
