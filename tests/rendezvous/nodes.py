"""Nodes of a run in one process, with one clock that only tests advance."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_lowercase

import pytest

from hpcelastic.backends.backend import Backend
from hpcelastic.backends.connect import open_agent_backend
from hpcelastic.protocol.assignment import assignment
from hpcelastic.protocol.leaders import around
from hpcelastic.protocol.peers import Notification
from hpcelastic.protocol.settings import FILE, NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.protocol.state import Failure, Member, NodeState, Participant, Phase, State
from hpcelastic.rendezvous.observation import Commit, Observation
from hpcelastic.rendezvous.rendezvous import Rendezvous
from hpcelastic.rendezvous.run import open_run
from hpcelastic.storage.paths import RunPaths

LEASE, MARGIN, LAST_CALL = 12.0, 2.0, 30.0
DEAD = LEASE + MARGIN + 0.001
HEARTBEAT = LEASE / 3
"""Interval in seconds between renewals of a lease while a round runs."""


def settings(minimum: int, maximum: int, restarts: int = 3) -> Settings:
    times = RendezvousSettings(last_call=LAST_CALL, lease=LEASE, margin=MARGIN)
    return Settings(NodeRange(minimum, maximum), times, RestartSettings(restarts))


@dataclass
class World:
    """A run's directory and the clock of all its nodes."""

    paths: RunPaths
    backend: Backend
    """The backend of all nodes, which are in one process."""

    settings: Settings
    now: float = 1000.0
    nodes: list["Node"] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def node(self, name: str, incarnation: str = "0-ab", **fields: object) -> "Node":
        """Return a new node. ``fields`` are fields of its member."""
        member = Member(f"{name}@{incarnation}", NodeState.READY, 0, 2, f"{name}.net", 4000 + len(self.nodes))
        self.nodes.append(Node(self, replace(member, **fields)))  # type: ignore[arg-type]  # fields of Member
        return self.nodes[-1]


def make_world(
    root: Path, minimum: int, maximum: int, restarts: int = 3, backend: str = FILE, endpoint: str = ""
) -> World:
    asked = settings(minimum, maximum, restarts)
    asked = replace(asked, rendezvous=replace(asked.rendezvous, backend=backend, endpoint=endpoint))
    paths = RunPaths(root)
    for directory in (paths.register, paths.leases):
        directory.mkdir(parents=True)
    world = World(paths, open_agent_backend(paths, root.name, asked.rendezvous), asked)
    open_run(world.backend, "run", world.settings, "test")
    return world


class Node:
    """One node. It does one turn at a time, like an agent."""

    def __init__(self, world: World, member: Member) -> None:
        self.member = member
        self.commits: list[Commit] = []
        """What this node has written."""

        self.rendezvous = Rendezvous(
            world.backend, member.node, world.settings, world.clock, committed=self.commits.append
        )

    def step(self) -> Observation:
        """Do one turn without a change of the node's own state."""
        return self.rendezvous.step(self.member)

    def turn(self) -> State:
        """Do one turn, then start or stop workers as the state says. The next turn publishes that."""
        state = self.step().state
        part = assignment(state, self.member.node)
        if part is not None and part.round > self.member.round:
            self.set_state(NodeState.RUNNING, part.round)
        elif part is None and not state.phase.final:
            self.set_state(NodeState.READY, state.round)
        return state

    def set_state(self, node_state: NodeState, round: int) -> None:
        failure = None if node_state is NodeState.RUNNING else self.member.failure
        self.member = replace(self.member, node_state=node_state, round=round, failure=failure)

    def fail(self, round: int, message: str = "ValueError: x", when: float = 1.0) -> None:
        failure = Failure(round, self.member.node, 0, 0, 1, message, timestamp=when)
        self.member = replace(self.member, node_state=NodeState.FAILED, round=round, failure=failure)


@dataclass
class RecordingNotifier:
    """A notifier of one node that records its calls. It delivers nothing."""

    healthy: bool = True
    notified: list[tuple[set[str], int]] = field(default_factory=list)
    watched: tuple[str, ...] = ()

    def notify(self, nodes: Iterable[Member | Participant], version: int, change: bytes = b"") -> None:
        self.notified.append(({node.name for node in nodes}, version))

    def watch(self, members: Sequence[Participant], version: int) -> None:
        self.watched = tuple(member.name for member in members)


class NotifiedNode(Node):
    """A node with a notifier. Its turns are those of the agent's thread."""

    def __init__(self, world: World, member: Member) -> None:
        self.member = member
        self.notifier = RecordingNotifier()
        self.rendezvous = Rendezvous(world.backend, member.node, world.settings, world.clock, notifier=self.notifier)

    def turn(self) -> State | None:
        """Renew the lease and poll if they are due, then follow the state."""
        self.rendezvous.renew(self.member)
        observation = self.rendezvous.poll()
        return self.follow(observation) if observation else None

    def follow(self, observation: Observation) -> State:
        state = observation.state
        inside = self.member.node in {p.node for p in state.participants}
        if state.phase is Phase.RUNNING and inside and state.round > self.member.round:
            self.set_state(NodeState.RUNNING, state.round)
        elif state.phase is Phase.JOINING and self.member.node_state is not NodeState.LEFT:
            self.set_state(NodeState.READY, state.round)
        return state

    @property
    def neighbours(self) -> set[str]:
        """The nodes with which this node shares a link."""
        state = self.rendezvous._known.state
        return {p.node for p in around(state, self.member.node)}

    @property
    def new_notifications(self) -> list[tuple[set[str], int]]:
        """The notified nodes and versions since the last access."""
        notified, self.notifier.notified = self.notifier.notified, []
        return notified


def wait(world: World, seconds: float, *nodes: Node) -> None:
    """Advance the clock while these nodes renew their leases."""
    steps = int(seconds / HEARTBEAT) + 1
    for _ in range(steps):
        world.now += seconds / steps
        for node in nodes:
            node.step()


def turns(*nodes: Node, times: int = 3) -> State:
    """Do some turns of each node, one after the other. Return the state that the last one saw."""
    for _ in range(times):
        states = [node.turn() for node in nodes]
    return states[-1]


def names(state: State) -> list[str]:
    return [p.name for p in state.participants]


def running(root: Path, count: int, minimum: int = 1) -> tuple[World, list[NotifiedNode]]:
    """Return a round that runs on ``count`` nodes. All nodes know it, and no notification is pending."""
    world = make_world(root, minimum, count)
    nodes = [
        NotifiedNode(world, world.node(name, order=i, job="7.0", job_nodes=count).member) for i, name in named(count)
    ]
    for _ in range(4):
        for node in nodes:
            world.now += 0.05
            node.rendezvous.receive(Notification(0))
            node.turn()
            node.follow(node.step())
    for node in nodes:
        node.turn()
        node.new_notifications  # noqa: B018  # clears them
        assert node.member.node_state is NodeState.RUNNING and len(node.notifier.watched) == count
    world.now += 0.05
    return world, nodes


def deliver(world: World, nodes: Sequence[NotifiedNode], until: float) -> State:
    """Let the nodes take their turns, and deliver their notifications, until a round runs on all of them.

    Return the state then, or at the time ``until``.
    """
    state = nodes[0].rendezvous._known.state
    before = state.round
    while world.now < until:
        for node in nodes:
            state = node.turn() or state
            for there, version in node.new_notifications:
                for other in nodes:
                    if other is not node and other.member.name in there:
                        other.rendezvous.receive(Notification(version))
        if state.round > before and all(node.member.round == state.round for node in nodes):
            return state
        world.now += 0.1
    return state


def named(count: int) -> list[tuple[int, str]]:
    return list(enumerate(ascii_lowercase[:count]))


def readings(node: NotifiedNode, patch: pytest.MonkeyPatch) -> list[float]:
    """Return a list of the times at which the node reads all leases from now on."""
    found, look = list[float](), node.rendezvous._leases.look

    def recorded() -> None:
        found.append(node.rendezvous._clock())
        look()

    patch.setattr(node.rendezvous._leases, "look", recorded)
    return found
