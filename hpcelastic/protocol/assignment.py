"""What a round means for one node.

Pure.
"""

from dataclasses import dataclass

from hpcelastic.protocol.state import Phase, State


@dataclass(frozen=True)
class Assignment:
    """A node's part in a round: enough to start its workers."""

    round: int
    group_rank: int
    group_world_size: int
    first_rank: int
    local_world_size: int
    world_size: int
    master_addr: str
    master_port: int
    role: str
    """Role of this node's workers; empty for the default one."""

    role_first_rank: int
    """Place of its first worker among those of its role, by rank."""

    role_world_size: int
    """Workers of its role on all nodes."""


def assignment(state: State, node: str) -> Assignment | None:
    """The part of ``node`` in the round that runs; None if none runs or the node is not in it."""
    if state.phase is not Phase.RUNNING:
        return None
    group_rank = next((i for i, p in enumerate(state.participants) if p.node == node), None)
    if group_rank is None:
        return None
    sizes = [p.local_world_size for p in state.participants]
    role = state.participants[group_rank].role
    alike = [p.local_world_size if p.role == role else 0 for p in state.participants]
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
        role_first_rank=sum(alike[:group_rank]),
        role_world_size=sum(alike),
    )
