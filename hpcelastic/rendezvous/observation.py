"""The results of one poll of the rendezvous, for the agent."""

from dataclasses import dataclass

from hpcelastic.protocol.decide import waiting
from hpcelastic.protocol.lease_duration import HeldLease
from hpcelastic.protocol.state import State, View

_NOTHING_SEEN = View({})


@dataclass(frozen=True)
class Commit:
    """A version of the register that this node has written."""

    version: int
    state: State
    evidence: str
    """How it is known that the node `State.lost` is dead; empty if no node was lost."""

    silence: float | None = None
    """Seconds since this node has last seen a renewal of the lost node's lease; None if it never has, or without a
    lost node."""


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

    view: View = _NOTHING_SEEN
    """The leases that this node has read, with its own."""

    expiry: float = 0.0
    """Seconds after which a node that becomes silent now is declared dead, at most."""

    @property
    def waiting(self) -> int:
        """The number of nodes that wait for the next round, according to the leases that this node has read."""
        return waiting(self.state, self.view)

    def early_start(self, role: str) -> bool:
        """Whether workers of ``role`` can start before they have a place in a round; see `Member.early_start`."""
        members = (seen.member for seen in self.view.nodes.values() if seen.member)
        return any(member.early_start and member.role == role for member in members)
