"""A deterministic simulation of a run: every agent, worker, file and fault of it, from one seed.

A `Node` runs the real protocol over the real leases and register, on a simulated `Disk`; a `Referee` judges every
step. No wall clock is used, and no randomness but the seed's.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, TypeVar

from hpcelastic.protocol.codec import decode, encode
from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.protocol.state import Member, Stand, State
from tests.protocol.disk import Disk
from tests.protocol.node import LEASE, MARGIN, PATHS, POLL, Group, Node
from tests.protocol.referee import Referee, Violation
from tests.protocol.under_test import Code, Patch, load

STALENESS = 1.0
"""How far a reader of a lease may lag; must stay below MARGIN."""

SETTLED = 150.0
"""Seconds within which a run must end once nothing disturbs it any more."""

T = TypeVar("T")


@dataclass(frozen=True)
class Profile:
    """What may go wrong, and how often."""

    name: str
    faults: Mapping[str, float] = field(default_factory=dict)
    """Weights, by the name of a method of `Simulation`."""

    every: float = 8.0
    """Mean seconds between two faults."""

    until: float = 60.0
    """No fault comes later than this."""

    echo: float = 0.7
    """How likely a worker fails because a peer is gone; otherwise it hangs until it is stopped."""


class Simulation:
    """One run of ``size`` nodes at first, in simulated seconds."""

    def __init__(
        self,
        seed: int,
        profile: Profile,
        size: int = 3,
        patches: tuple[Patch, ...] = (),
        node: type[Node] = Node,
        settings: Settings | None = None,
    ) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.profile, self.size = profile, size
        self.history: list[str] = []
        self.referee = Referee()
        disk = Disk(lambda: self.now, lambda: self.random.uniform(0, STALENESS))
        self.code: Code = load(*patches, files=disk, decode=self.decode)
        self._decoded: dict[int, tuple[Any, Any]] = {}
        self.nodes: list[Node] = []
        self._node = node
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._names = [f"n{i}" for i in range(1, size + 2)]
        self._job, self._job_known = 1, self.random.random() < 0.7
        self._user = self.code.register.Register(PATHS.register, "user")
        self.state = State("run", settings or self._any_settings())
        self._user.commit(0, encode(self.state))
        self.referee.reopened(self.state)
        for name in self._names[:size]:
            self.after(self.random.uniform(0, 3), partial(self._arrive, name, False))

    def _any_settings(self) -> Settings:
        least = self.random.randint(1, self.size)
        nodes = NodeRange(least, self.random.randint(least, self.size + 1))
        last_call = self.random.choice([0.0, 3.0, 8.0])
        return Settings(
            nodes,
            RendezvousSettings(last_call=last_call, lease=LEASE, margin=MARGIN, poll=POLL),
            RestartSettings(self.random.randint(0, 3)),
        )

    # Time

    def after(self, delay: float, action: Callable[[], None]) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (self.now + delay, self._scheduled, action))

    def advance(self, until: float) -> None:
        """Let everything happen that is due by ``until``; Violation if it must not."""
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            self._guards()
            action()
            self._guards()
            self.referee.running({node.running for node in self.nodes if node.running is not None})
        self.now = until

    def _guards(self) -> None:
        for node in self.nodes:
            if not node.gone:
                node.guard()

    def decode(self, kind: type[T], data: Any) -> T:
        """`codec.decode`, done once for what all nodes read: the disk gives them the same object."""
        if id(data) not in self._decoded:
            self._decoded[id(data)] = data, decode(kind, data)
        value: T = self._decoded[id(data)][1]
        return value

    def log(self, event: str) -> None:
        self.history.append(f"{self.now:8.3f}  {event}")

    # A whole run

    def run(self) -> State:
        """Faults as the profile says, then peace; the state in which the run has ended. Violation if it can't end."""
        when = self.random.expovariate(1 / self.profile.every)
        while self.profile.faults and when < self.profile.until:
            self.after(when, self._any_fault)
            when += self.random.expovariate(1 / self.profile.every)
        try:
            self.advance(self.profile.until)
            self.settle()
        except Violation as violation:
            raise Violation(f"{violation}\n{self.state.settings}\n" + "\n".join(self.history)) from None
        return self.state

    def settle(self) -> None:
        """No more faults: the run must now end."""
        for node in self.nodes:
            self._release(node)
        self.advance(self.now + 10)  # who is about to leave has left
        for name in self._names:
            if sum(not node.leaving for node in self.live()) < self.state.settings.nodes.min:
                self.come(name)
        deadline = self.now + SETTLED
        while self.live() and self.now < deadline:
            self.advance(self.now + 1.0)
        if not self.state.phase.final or self.live():
            stuck = {node.id: f"{node.member.stand.value} {node.member.round}" for node in self.live()}
            where = f"{self.state.phase.value}, round {self.state.round}"
            raise Violation(f"stuck in {where}: {self.state.reason}; {stuck}")

    def commit(self, writer: str, register: Any, number: int, new: State) -> bool:
        """Try to make ``new`` the version after ``number``; False if there is one already."""
        made: bool = register.commit(number, encode(new))
        if made:
            self.log(f"{writer}: v{number + 1} {new.phase.value} {new.round}: {new.reason} {dict(new.spent) or ''}")
            old, self.state = self.state, new
            self.referee.committed(number + 1, old, new, writer, self.now)
        return made

    def echo(self, round: int) -> None:
        """Workers of ``round`` are gone somewhere: those elsewhere may fail for it."""
        for node in self.nodes:
            group = node.group
            if group and group.running and group.part.round == round and self.random.random() < self.profile.echo:
                self.after(self.random.uniform(0, 2), partial(self._echoed, node, group))

    def _echoed(self, node: Node, group: Group) -> None:
        if not node.gone:
            node.fail(group, by_itself=False)

    # Faults

    def live(self) -> list[Node]:
        return [node for node in self.nodes if not node.gone]

    def _any_fault(self) -> None:
        kind = self.random.choices([*self.profile.faults], [*self.profile.faults.values()])[0]
        getattr(self, kind)()

    def _victim(self, name: str | None = None) -> Node | None:
        candidates = [n for n in self.live() if not n.leaving and not n.frozen and not n.cut_off]
        candidates = [n for n in candidates if name in (None, n.member.name)]
        return self.random.choice(candidates) if candidates else None

    def crash(self, name: str | None = None) -> None:
        """A worker fails by itself."""
        node = self._victim(name)
        if node is not None and node.group is not None:
            node.fail(node.group, by_itself=True)

    def kill(self, name: str | None = None) -> None:
        """A node is lost: agent, guard and workers, at once."""
        node = self._victim(name)
        if node is not None:
            self._disturb(node, "is killed")
            node.kill()

    def freeze(self, name: str | None = None) -> None:
        """Nothing happens on a node for a while."""
        node = self._victim(name)
        if node is not None:
            self._disturb(node, "is frozen")
            node.frozen = True
            self.after(self.random.uniform(1, 25), lambda: self._release(node))

    def cut_off(self, name: str | None = None) -> None:
        """A node's file operations hang for a while; its workers go on."""
        node = self._victim(name)
        if node is not None:
            self._disturb(node, "is cut off")
            node.cut_off = True
            self.after(self.random.uniform(1, 25), lambda: self._release(node))

    def leave(self, name: str | None = None) -> None:
        """A node leaves politely."""
        node = self._victim(name)
        if node is not None:
            self._disturb(node, "leaves")
            node.leave()

    def come(self, name: str | None = None) -> None:
        """A node comes, or comes back as a new incarnation, knowing of its predecessors' death or not."""
        absent = [n for n in self._names if n not in {node.member.name for node in self.live()} and name in (None, n)]
        if absent:
            self._arrive(self.random.choice(absent), self.random.random() < 0.5)

    def requeue(self) -> None:
        """The whole job is killed and started again; each node knows that its predecessor is dead."""
        for node in self.live():
            self._disturb(node, "is killed")
            node.kill()
        self._job += 1
        for name in self._names[: self.size]:
            self.after(self.random.uniform(0, 10), partial(self._arrive, name, True))

    def close(self) -> None:
        """The user closes the run."""
        decision = self.code.decide.close(self.state, "closed by the user")
        if decision.next is not None:
            self.commit("user", self._user, self._user.read().number, decision.next)

    def reopen(self) -> None:
        """The user lets a run go on that has ended, and starts agents for it."""
        if not self.state.phase.final:
            return
        self.state = self.code.decide.reopen(self.state, self.state.settings)
        self._user.commit(self._user.read().number, encode(self.state))
        self.referee.reopened(self.state)
        self.log("the user reopens the run")
        for name in self._names:
            self.come(name)

    def _arrive(self, name: str, knowing: bool) -> None:
        if name in {node.member.name for node in self.live()}:
            return
        before = [node.id for node in self.nodes if node.member.name == name]
        order = self._names.index(name)
        member = Member(
            node=f"{name}@{len(before)}",
            stand=Stand.READY,
            round=-1,
            local_world_size=self.random.randint(1, 3),
            address=f"10.0.0.{order}",
            port=0,
            order=order,
            job=f"job.{self._job}" if self._job_known else "",
            job_nodes=self.size if self._job_known else 0,
            dead=tuple(before) if knowing else (),
        )
        self.log(f"{member.node} comes{' and knows ' + ', '.join(before) + ' dead' if member.dead else ''}")
        self.nodes.append(self._node(self, member))

    def _disturb(self, node: Node, how: str) -> None:
        self.log(f"{node.id} {how}")
        self.referee.disturbed(node.id, float("inf"))

    def _release(self, node: Node) -> None:
        if (node.frozen or node.cut_off) and not node.gone:
            self.log(f"{node.id} goes on")
            self.referee.disturbed_until[node.id] = self.now + LEASE + MARGIN
            node.release()
