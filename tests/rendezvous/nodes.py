"""Nodes of a run in one process, with one clock that only tests advance."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcelastic.backends.backend import Backend
from hpcelastic.backends.connect import open_agent_backend
from hpcelastic.protocol.assignment import assignment
from hpcelastic.protocol.settings import FILE, NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.protocol.state import Failure, Member, NodeState, State
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
