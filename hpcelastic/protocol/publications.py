"""The consequences of a publication of a node for the round that runs.

Pure. ``now`` is what the node has published, and ``before`` what it had published before; None if that was nothing.
"""

from hpcelastic.protocol.state import Member, NodeState, Phase, State


def ends_the_round(state: State, now: Member, before: Member | None) -> bool:
    """Return whether the publication ends the round that runs."""
    if state.phase is not Phase.RUNNING or now == before:
        return False
    left = now.node_state is NodeState.READY and now.round >= state.round
    left = left or now.leaving != (before.leaving if before else None)
    failed = now.node_state in (NodeState.FAILED, NodeState.LEFT)
    return left or failed or reports_loss(state, now, before) or grows(state, now)


def reports_loss(state: State, now: Member, before: Member | None) -> bool:
    """Return whether the publication reports that a member of the round is dead."""
    return any(node in state.ranks for node in now.dead if not before or node not in before.dead)


def grows(state: State, now: Member) -> bool:
    """Return whether the node has more workers than places in the round."""
    rank = state.ranks.get(now.node) if now.node_state is NodeState.RUNNING else None
    return rank is not None and state.participants[rank].local_world_size < now.local_world_size
