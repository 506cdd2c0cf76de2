"""The values of the rendezvous: what a node publishes about itself, and what all nodes have agreed on.

Pure: values only. A node publishes its own data in its lease file, which no other node writes (`Member`). The register
contains only decisions (`State`). So a thousand nodes join without contention, and one version of the register forms a
round.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from hpcelastic.protocol.codec import renamed
from hpcelastic.protocol.findings import Charge, Hang, Rollback, RollbackDemand, Slow
from hpcelastic.protocol.rows import Rows, column, positions, row
from hpcelastic.protocol.settings import Settings


class Phase(str, Enum):
    """The phase of a run."""

    JOINING = "joining"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CLOSED = "closed"

    @property
    def final(self) -> bool:
        """True if no further round follows."""
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.CLOSED)


class NodeState(str, Enum):
    """The state of a node in the round that its `Member` names."""

    READY = "ready"
    """No worker of that round or an earlier one can act here. The node asks for a place in the next round."""

    RUNNING = "running"
    """Its workers of that round are running."""

    SUCCEEDED = "succeeded"
    """All its workers of that round have ended with status 0."""

    FAILED = "failed"
    """A worker of that round has failed here; the other workers are being stopped."""

    LEFT = "left"
    """No worker is left here, and this incarnation never starts one again."""


class Cause(str, Enum):
    """The cause for which a round ended before all workers had succeeded. Only WORKER spends the restart budget."""

    WORKER = "worker"
    NODE = "node"
    LEAVE = "leave"
    JOIN = "join"
    SCALE = "scale"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class Failure:
    """The report of a worker's failure."""

    round: int
    node: str
    rank: int
    local_rank: int
    exit_code: int
    """Exit status, or minus the number of the signal that ended the process."""

    message: str
    """Last line of the traceback, or the meaning of the exit status."""

    traceback: str = ""
    log: str = ""
    """Path of the worker's log."""

    timestamp: float = 0.0
    """Seconds since the epoch on the node's own clock: for people, not for the order of failures."""

    happened: float | None = None
    """The same on the clock of the run's filesystem, which orders the failures of different nodes. None if unknown."""

    echo: bool = False
    """True if the message is one that other ranks have when a worker fails elsewhere."""

    collective: bool = False
    """True if the worker lives, one of its collectives has failed, and no cause of that was found."""

    step: int = -1
    """The number of training steps that the worker had begun, in all rounds; -1 if it is unknown."""

    rollback: RollbackDemand | None = None
    """Set if the worker has found its state to be poisoned."""


RequeueReason: TypeAlias = Literal["", "preemption", "limit", "shortage", "unknown", "never"]


@dataclass(frozen=True)
class Notice:
    """A warning that a node has to leave: because of preemption, the end of its job, or a drain."""

    reason: str
    seconds: float
    """Seconds that its workers still have, counted from the publication of the notice."""

    requeue: RequeueReason = field(default="", metadata=renamed("again"))
    """Why the agents of the node's job requeue the job. Empty if they do not; "unknown" if SLURM may requeue it as long
    as it has not ended; "never" if SLURM must be prevented from requeueing it."""


@dataclass(frozen=True)
class Member:
    """The data that one node publishes about itself, in its lease file. No other node writes that file."""

    node: str
    """``NAME@INCARNATION``: a node that returns is another node with the same name."""

    node_state: NodeState
    round: int
    local_world_size: int
    """Number of workers that can take part in the next round at once."""

    address: str
    port: int
    """TCP port at ``address`` for the workers' store of the next round. The agent keeps it reserved."""

    notification_port: int = 0
    """Port at ``address``, for UDP and TCP: the agent receives notifications and links there; 0 if it has none."""

    order: int = 0
    """SLURM's node id within its job; orders nodes that were in no round before."""

    job: str = ""
    """The SLURM job that started the agent, and its restart count; empty if unknown."""

    job_nodes: int = 0
    """Total number of nodes of ``job``; 0 if unknown."""

    host: str = ""
    """SLURM's name of the node that the agent runs on, if it differs from ``name``; otherwise empty."""

    topology: str = ""
    """The switches above the node, ``TOP.LEAF``, or its block; empty if unknown."""

    role: str = ""
    """Role of its workers; empty for the default role."""

    process: str = ""
    """The agent's process, unique on its machine. A later incarnation checks whether it is still alive."""

    dead: tuple[str, ...] = ()
    """Nodes whose processes this node knows to be dead: its own earlier incarnations, and neighbours whose kernel
    refused connections."""

    failure: Failure | None = None
    """Set in state FAILED."""

    fenced: int = -1
    """The last round whose workers were killed here because the lease expired, or failed while the run's directory did
    not work; -1 if none."""

    progress: int = -1
    """The highest step that workers here have reported as saved; -1 if they have reported none."""

    leaving: Notice | None = None
    """Set once the node has to leave; it is in no further round."""

    final: bool = False
    """Set in state SUCCEEDED by an agent that starts no workers again: no round can follow this one."""

    early_start: bool = False
    """Whether its script lets workers start before they have a place in a round."""

    starting: int = 0
    """Number of further workers that are still starting. A round waits for them only if it has too few nodes else."""

    @cached_property
    def name(self) -> str:
        return name_of(self.node)

    @property
    def machine(self) -> str:
        """SLURM's name of the node; several agents may share it."""
        return self.host or self.name


@row
@dataclass(frozen=True)
class Participant:
    """A member of a round; its place in `State.participants` is its group rank."""

    node: str
    local_world_size: int
    address: str
    port: int
    notification_port: int = 0
    topology: str = ""
    role: str = ""

    @cached_property
    def name(self) -> str:
        return name_of(self.node)


def participants_of(members: Iterable[Member], *, with_starting: bool = False) -> Sequence[Participant]:
    """Return the data of the members of a round, which waits for workers that are starting or does not.

    They are rows, because to make ten thousand objects and to encode them takes as long as all the rest of a decision.
    """
    extra = int(with_starting)
    rows = (
        [m.node, m.local_world_size + extra * m.starting, m.address, m.port, m.notification_port, m.topology, m.role]
        for m in members
    )
    return Rows.of(Participant, rows)


BY_SCHEDULER = "by the scheduler"
"""A part of the reason for which a node is drained, unless a person or a finding has drained it."""


@dataclass(frozen=True)
class State:
    """The state that all agents of a run have agreed on: the content of one version of the register.

    Invariants: ``round`` never falls and grows by exactly 1 as phase RUNNING begins. ``participants`` is not empty
    once ``round`` > 0, has between nodes.min and `max_nodes` entries, a multiple of nodes.multiple, and does not change
    within a round; in phase JOINING it still names the members of the round that ended, because some of their workers
    may still run. ``spent`` never falls within a run. ``cause`` is set only in phase JOINING of a round > 0, and
    ``grace`` is greater than 0 only there. A final phase is the last one, unless the user reopens the run.
    """

    run_id: str
    settings: Settings
    phase: Phase = Phase.JOINING
    round: int = 0
    participants: Sequence[Participant] = ()
    standbys: tuple[str, ...] = ()
    """Nodes that were ready when the round formed, and for which it had no place: it has `max_nodes` members, or they
    make no whole group; see ``nodes.multiple`` and ``nodes.within``."""

    cause: Cause | None = None
    grace: float = 0.0
    """Seconds that workers which call ``should_stop()`` have to finish a step, counted from when their agent reads this
    version. Set when a round ends although nothing is wrong with it."""

    lost: str = ""
    """The node whose loss has ended the last round; empty if another reason has. A node that reads its own name here is
    alive nevertheless, and others have seen its lease too late."""

    target: int = 0
    """The maximum number of nodes that the user has set for the running run; 0 for ``nodes.max``."""

    drained: tuple[str, ...] = ()
    """Nodes that must not be in a round, by name or by SLURM's name of the machine."""

    retired: tuple[str, ...] = ()
    """Incarnations of nodes that must not be in a round any more; a later one of the same name may."""

    spent: Mapping[str, int] = field(default_factory=dict)
    """Number of rounds that ended by each cause, in the whole run."""

    refilled: int = 0
    """Number of restarts that were refilled in the restart budget."""

    charge: Charge | None = None
    """The time from which the restart budget is refilled; None before the first failure."""

    failures: tuple[Failure, ...] = ()
    """Failure reports of the last round that a worker's failure ended; the root cause first."""

    stacks: int = 0
    """How often the stacks of all workers were requested. Agents write them when the number grows."""

    hang: Hang | None = None
    """The newest examination of a round that makes no progress."""

    rollback: Rollback | None = None
    """The newest return of the training to an older state."""

    slow: Slow | None = None
    """The newest finding about stragglers; None if none were found yet."""

    reason: str = "the run was created"
    """The reason for this version of the register, for people."""

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        """The group rank of each of the ``participants``, by node."""
        return positions(self.participants, "node")

    @property
    def world_size(self) -> int:
        """The number of workers of all ``participants``."""
        return sum(column(self.participants, "local_world_size"))

    @property
    def restarts(self) -> int:
        """The spent part of the restart budget."""
        return self.spent.get(Cause.WORKER.value, 0) - self.refilled

    @property
    def just_lost(self) -> str:
        """The node whose loss has ended the round that has just ended; empty while a round runs: it may be a member."""
        return self.lost if self.phase is Phase.JOINING else ""

    @property
    def max_nodes(self) -> int:
        """Maximum number of nodes of a round."""
        return self.settings.nodes.whole(self.target or self.settings.nodes.max)

    def fitting(self, nodes: Collection[Member | Participant]) -> int:
        """Return how many of these nodes make whole groups."""
        groups = self.settings.nodes
        return groups.most_of(node.topology for node in nodes) if groups.within else groups.whole(len(nodes))

    def size_of(self, nodes: Collection[Member | Participant]) -> int:
        """Return the number of members of a round for which these nodes are there."""
        return min(self.max_nodes, self.fitting(nodes))

    def drains(self, member: Member) -> bool:
        """True if the node must not be in a round."""
        if self.drained and (member.name in self.drained or member.machine in self.drained):
            return True
        return member.node in self.retired

    def is_surplus(self, node: str) -> bool:
        """True if the user has scaled the run and it does not need the node as a spare either."""
        needed = self.max_nodes - len(self.participants) + self.settings.nodes.spares
        return bool(self.target) and node in self.standbys[max(0, needed) :]


class Seen(NamedTuple):
    """An observer's knowledge of one node."""

    member: Member | None
    """None if a participant's lease file was not found."""

    alive: bool
    """False once the observer has seen no renewal of its lease for longer than lease + margin, on its own clock."""

    proved: bool = True
    """True once the observer has seen a renewal of the lease. Until then the node may be dead."""


@dataclass(frozen=True)
class View:
    """One observer's view of the nodes, besides the register."""

    nodes: Mapping[str, Seen]
    """By node id; contains at least every participant of the state that it is used with."""

    quorum_for: float = 0.0
    """Seconds since this observer first saw enough nodes ready for the next round."""

    expected: int | None = None
    """Number of nodes that the scheduler has started for the run and that have not joined yet; None if unknown."""

    @cached_property
    def dead(self) -> frozenset[str]:
        """Nodes that cannot have a process left: by their lease, or by the report of another node.

        A node's report on its own earlier incarnations is certain, and stays valid after its death. Its report on a
        neighbour may be wrong. A dead node cannot withdraw such a report, so it counts only while its author is alive.
        """
        expired = {node for node, seen in self.nodes.items() if not seen.alive}
        reported = {
            node
            for seen in self.nodes.values()
            if seen.member
            for node in seen.member.dead
            if seen.alive or name_of(node) == seen.member.name
        }
        return frozenset(expired | reported)

    def evidence_of_death(self, node: str) -> str:
        """Return how it is known that a node is dead: by its lease, or by the report of another node; empty if not."""
        reporters = [s.member.name for s in self.nodes.values() if s.member and s.alive and node in s.member.dead]
        if reporters:
            return f"reported by {min(reporters)}"
        return "lease" if node in self.dead else ""


def name_of(node: str) -> str:
    """Return the name in a node id."""
    return node.rpartition("@")[0]


def job_start(started_by: str) -> tuple[str, int]:
    """Return the job and its restart count in ``JOB.RESTART``; an empty job if they are unknown."""
    job, _, restart = started_by.rpartition(".")
    return (job, int(restart)) if job and restart.isdecimal() else ("", 0)
