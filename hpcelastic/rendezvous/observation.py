"""The result of one poll of the rendezvous, for the agent."""

from dataclasses import dataclass

from hpcelastic.protocol.lease_duration import HeldLease
from hpcelastic.protocol.state import State


@dataclass(frozen=True)
class Observation:
    """The result of one poll."""

    version: int
    state: State
    reason: str
    """Why the run is in this state, or what it waits for."""

    lease: HeldLease
    """The lease of ours that held when the register was read, on this process's clock."""

    settled: bool = True
    """False for a while after the lease had expired: others may still see it as expired and continue without us."""

    first: bool = False
    """True if no other node polls before this one."""

    short: bool = False
    """True while too few nodes are ready for a round, and no other node is waited for."""

    last: bool = False
    """True if the round has ended, and no other node has workers of it left."""

    early_start: bool = False
    """Whether workers of our role can start before they have a place in a round; see `Member.early_start`."""

    waiting: int = 0
    """Number of nodes that wait for the next round, according to the leases that this node has read."""

    expiry: float = 0.0
    """Seconds after which a node that becomes silent now is declared dead, at most."""
