"""The values that the rendezvous is about: what a node says of itself, and what all have agreed on.

Pure: values only. A node's wishes live in its own lease file, written by nobody else (`Member`); the register holds
nothing but decisions (`State`). So a thousand joins contend for nothing and one version of the register forms a round.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Literal, TypeAlias

from hpcelastic.protocol.settings import Settings


class Phase(str, Enum):
    """Where a run stands."""

    JOINING = "joining"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CLOSED = "closed"

    @property
    def final(self) -> bool:
        """True where no further round will come."""
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.CLOSED)


class Stand(str, Enum):
    """How a node stands to the round that its `Member` names."""

    READY = "ready"
    """No worker of that round or an earlier one is left here; the node wants into the next."""

    RUNNING = "running"
    """Its workers of that round run."""

    SUCCEEDED = "succeeded"
    """All its workers of that round have ended with status 0."""

    FAILED = "failed"
    """A worker of that round has failed here; the others are being stopped."""

    LEFT = "left"
    """No worker is left here and this incarnation will never have one again."""


class Cause(str, Enum):
    """Why a round ended before all had succeeded. Only WORKER spends the restart budget."""

    WORKER = "worker"
    NODE = "node"
    LEAVE = "leave"
    JOIN = "join"
    SCALE = "scale"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class Failure:
    """What is known of a worker's failure."""

    round: int
    node: str
    rank: int
    local_rank: int
    exit_code: int
    """Exit status, or minus the number of the signal that ended the process."""

    message: str
    """Last line of the traceback, or what the exit status means."""

    traceback: str = ""
    log: str = ""
    """Path of the worker's log."""

    timestamp: float = 0.0
    """Seconds since the epoch on the node's own clock: for people, never for a decision."""


Again: TypeAlias = Literal["", "preemption", "limit", "shortage", "unknown", "never"]


@dataclass(frozen=True)
class Notice:
    """A warning that a node must go: preemption, the end of its job, a drain."""

    reason: str
    seconds: float
    """What its workers may still take, from when it is said."""

    again: Again = ""
    """After what the job of the node is to be started again by its own agents; empty if not, unknown if it may be that
    SLURM will start it again, as long as it has not ended; never if SLURM must be kept from it."""


@dataclass(frozen=True)
class Member:
    """What one node says of itself; its lease file holds this and nobody else writes it."""

    node: str
    """``NAME@INCARNATION``: a node that comes back is another node with the same name."""

    stand: Stand
    round: int
    local_world_size: int
    address: str
    port: int
    """TCP port at ``address`` on which the workers' store of the next round will be served; the agent holds it."""

    bell: int = 0
    """Port at ``address``, of UDP and TCP, at which the agent is told of news and watched; 0 if it has none."""

    order: int = 0
    """SLURM's node id within its job; decides between nodes that were in no round before."""

    job: str = ""
    """What started the agent: SLURM job and restart count; empty if unknown."""

    job_nodes: int = 0
    """Nodes that ``job`` has in all; 0 if unknown."""

    host: str = ""
    """SLURM's name of the node that the agent runs on, where ``name`` is another; empty where it is not."""

    topology: str = ""
    """The switches above the node, ``TOP.LEAF``, or its block; empty if unknown."""

    role: str = ""
    """Role of its workers; empty for the default one."""

    process: str = ""
    """The agent's process, unique on its machine; a later incarnation asks whether it is still there."""

    dead: tuple[str, ...] = ()
    """Nodes whose processes this node knows to be gone: earlier incarnations of itself, neighbours whose machine has
    refused it."""

    failure: Failure | None = None
    """Set with stand FAILED."""

    fenced: int = -1
    """The last round whose workers were killed here because the lease ran out, or failed while the run's directory did;
    -1 if none."""

    progress: int = -1
    """The furthest step that workers here have reported to be saved; -1 if they have not reported any."""

    leaving: Notice | None = None
    """Set once the node must go; it is in no further round."""

    final: bool = False
    """Set with stand SUCCEEDED by an agent that starts no workers again: no round can follow this one."""

    @property
    def name(self) -> str:
        return name_of(self.node)

    @property
    def machine(self) -> str:
        """SLURM's name of the node, which several agents may share."""
        return self.host or self.name


@dataclass(frozen=True)
class Participant:
    """A member of a round; its place in `State.participants` is its group rank."""

    node: str
    local_world_size: int
    address: str
    port: int
    bell: int = 0
    topology: str = ""
    role: str = ""

    @property
    def name(self) -> str:
        return name_of(self.node)


def participant(member: Member) -> Participant:
    """What a round keeps of a member."""
    m = member
    return Participant(m.node, m.local_world_size, m.address, m.port, m.bell, m.topology, m.role)


@dataclass(frozen=True)
class State:
    """What all agents of a run have agreed on: the content of one version of the register.

    Invariants: ``round`` never falls and grows by exactly 1 as phase RUNNING begins. ``participants`` is not empty
    once ``round`` > 0, has between nodes.min and `most` entries, and does not change within a round; in phase
    JOINING it still names the members of the round that ended, for their workers may not all be gone yet. ``spent``
    never falls within a run. ``cause`` is set in phase JOINING of a round > 0 and nowhere else, and so is ``grace``
    where it is not 0. A final phase is the last one, unless the user reopens the run.
    """

    run_id: str
    settings: Settings
    phase: Phase = Phase.JOINING
    round: int = 0
    participants: tuple[Participant, ...] = ()
    standbys: tuple[str, ...] = ()
    """Nodes that were ready when the round formed and found it full."""

    cause: Cause | None = None
    grace: float = 0.0
    """Seconds that workers who ask for it have to come to a step's end, from when this version is learnt: the round
    ends though nothing is wrong with it."""

    target: int = 0
    """How many nodes the user wants at most by now; 0 for ``nodes.max``."""

    drained: tuple[str, ...] = ()
    """Nodes that must not take part, by name or by SLURM's name of the machine."""

    retired: tuple[str, ...] = ()
    """Incarnations of nodes that must not take part any more; a later one of the same name may."""

    spent: Mapping[str, int] = field(default_factory=dict)
    """How many rounds ended by each cause, in the whole run."""

    failures: tuple[Failure, ...] = ()
    """Reports of the last round that a worker's failure ended; the root cause first."""

    reason: str = "the run was created"
    """Why the register changed to this version, for people."""

    @property
    def restarts(self) -> int:
        """How much of the restart budget is spent."""
        return self.spent.get(Cause.WORKER.value, 0)

    @property
    def most(self) -> int:
        """How many nodes a round may have."""
        return self.target or self.settings.nodes.max

    def drains(self, member: Member) -> bool:
        """Whether the node must not take part."""
        return member.name in self.drained or member.machine in self.drained or member.node in self.retired

    def is_surplus(self, node: str) -> bool:
        """Whether a run that the user has scaled does not even need the node to stand by."""
        return bool(self.target) and node in self.standbys[self.settings.nodes.spares :]


@dataclass(frozen=True)
class Seen:
    """What an observer knows of one node."""

    member: Member | None
    """None where a participant's lease file has not been found."""

    alive: bool
    """False once the observer has seen no renewal of its lease for longer than lease + margin, on its own clock."""

    proved: bool = True
    """True once the observer has seen the lease renewed: until then it may be a dead node's."""


@dataclass(frozen=True)
class View:
    """What one observer sees besides the register."""

    nodes: Mapping[str, Seen]
    """By node id; holds at least every participant of the state that it is used with."""

    quorum_for: float = 0.0
    """Seconds since this observer first saw enough nodes ready for the next round."""

    coming: int | None = None
    """Nodes that the scheduler has started for the run and that have not been seen; None if it was not asked."""

    @cached_property
    def dead(self) -> frozenset[str]:
        """Nodes that cannot have a process left: by their lease, or by the word of another.

        What a node says of its own predecessors is certain, and stays so whatever becomes of it. Of a neighbour it may
        be mistaken; who has died can't take that back any more, so then it counts no longer.
        """
        expired = {node for node, seen in self.nodes.items() if not seen.alive}
        told = {
            node
            for seen in self.nodes.values()
            if seen.member
            for node in seen.member.dead
            if seen.alive or name_of(node) == seen.member.name
        }
        return frozenset(expired | told)


def name_of(node: str) -> str:
    """The name in a node id."""
    return node.rpartition("@")[0]
