"""A node of the model: an agent without workers, and its network."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.model.filesystem import Mount
from benchmarks.model.resources import Meter, Queue
from hpcelastic.network.notifications import RateLimiter
from hpcelastic.protocol.node import NodeStateMachine, Publish, ReservePort, StartWorkers, Transition
from hpcelastic.protocol.peers import Notification, PeerLinkLost, PeerRefused, linked
from hpcelastic.protocol.state import Member, NodeState
from tests.protocol.under_test import RENDEZVOUS, RUN, THREAD
from tests.simulation.clock import Event, Process, Task

if TYPE_CHECKING:
    from benchmarks.model.cluster import Cluster

_PORT = 1
"""The port of the workers' store. No process binds it here."""

_DEPARTURE = 1.0
"""Seconds until the processes of a node that leaves have ended."""


class Node:
    """One node with its processor, its mount and its agent."""

    def __init__(self, cluster: "Cluster", index: int, processor: Queue, restart: int = 0) -> None:
        self.cluster, self.index, self.restart = cluster, index, restart
        self.id = self._id(restart)
        self.process = Process(cluster.clock)
        self.meter = Meter(processor, cluster.model.processor.speed)
        self.mount = Mount(
            cluster.server, cluster.servers, self.process, self.id, lambda: cluster.clock.now, self.meter
        )
        self.notifier = Notifier(self)
        self.started: dict[int, float] = {}
        """The time at which the workers of each round were started."""

        self._machine = NodeStateMachine(self._member())
        self.thread: Any = None

    def _id(self, restart: int) -> str:
        return f"node{self.index:06d}@{restart}-{self.index:08x}"

    def _member(self) -> Member:
        return Member(
            node=self.id,
            node_state=NodeState.READY,
            round=-1,
            local_world_size=8,
            address=f"10.{self.index >> 16}.{self.index >> 8 & 255}.{self.index & 255}",
            port=0,
            order=self.index,
            job=f"1000000.{self.restart}",
            job_nodes=self.cluster.size,
            topology=f"s{self.index // 512}.s{self.index // 32}",
            notification_port=20000 + self.index % 10000,
            dead=(self._id(self.restart - 1),) if self.restart else (),
        )

    # Processor time

    def entered(self) -> None:
        """A task of this node runs from now on."""
        self.cluster.code.system.mount = self.mount
        self.cluster.running = self
        self.meter.resume()

    def pause_for_work(self, extra: float = 0.0) -> None:
        task = self.cluster.clock.task
        assert task is not None
        task.pause(self.meter.take(extra))

    # The agent

    def start(self) -> None:
        Task(self.process, self._run, self.entered).start()

    def _run(self) -> None:
        cluster, code = self.cluster, self.cluster.code
        self.pause_for_work(cluster.model.processor.start)
        backend = cluster.backend()
        clock: Callable[[], float] = lambda: cluster.clock.now  # noqa: E731
        found = code.module(RUN).find_run(backend, "scale", cluster.settings, self.id, clock)
        rendezvous = code.module(RENDEZVOUS).Rendezvous(
            backend, self.id, cluster.settings, clock, self.notifier, first=found
        )
        self.thread = code.module(THREAD).RendezvousThread(
            rendezvous, self._machine.member, cluster.settings.rendezvous.poll, self._deliver, lambda: None
        )
        self._perform(self._machine.begin(found.state))
        self.thread.start()

    def _deliver(self, message: Any) -> None:
        if isinstance(message, Exception):
            self.cluster.failed.append(f"{self.id}: {message}")
            return
        transition = None
        while transition is None or transition.actions:
            transition = self._machine.observe(
                message.state, message.lease, self.cluster.clock.now, settled=message.settled
            )
            self._perform(transition)
        if self._machine.left and self._machine.member.node_state is not NodeState.LEFT:
            self._perform(self._machine.depart())
            self.cluster.clock.after(_DEPARTURE, self.end, self.process)

    def _perform(self, transition: Transition) -> None:
        self._machine = transition.machine
        for action in transition.actions:
            if isinstance(action, Publish):
                self.thread.publish(self._machine.member)
            elif isinstance(action, ReservePort):
                self._machine = self._machine.with_port(_PORT)
            elif isinstance(action, StartWorkers):
                self.cluster.workers_started(self, action.part.round)

    def end(self) -> None:
        """End all processes of the node. Its machine refuses connections from now on."""
        self.process.end()
        self.cluster.lost(self)


class Notifier:
    """One node's side of the network, a `hpcelastic.rendezvous.notifier.Notifier`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._clock = node.cluster.clock
        self._fabric = node.cluster.model.fabric
        self._limiter = RateLimiter()
        self._watched: tuple[int, ...] = ()
        self._members: Sequence[Any] = ()

    @property
    def healthy(self) -> bool:
        nodes = self._node.cluster.nodes
        return len(self._members) == 1 or (
            bool(self._watched) and not any(nodes[i].process.gone for i in self._watched)
        )

    def notify(self, nodes: Iterable[Any], version: int, change: bytes = b"") -> None:
        cluster, targets = self._node.cluster, [target.node for target in nodes]
        meter, sending = self._node.meter, self._fabric.sending
        meter.take(0.0)
        receivers = [cluster.by_id[target].notifier for target in targets if target != self._node.id]
        for receiver in receivers:
            delay = meter.processor.take(sending) + self._fabric.latency
            self._clock.after(delay, partial(receiver.receive, version, change), receiver._node.process)
        meter.used += sending * len(receivers)
        cluster.messages += len(receivers)
        meter.resume()  # the time of a message is a parameter
        self._node.pause_for_work()

    def receive(self, version: int, change: bytes) -> None:
        """A datagram has arrived."""
        self._node.meter.used += self._fabric.receiving
        switch = self._node.cluster.model.processor.switch
        delay = min(self._node.meter.processor.take(self._fabric.receiving), switch + self._fabric.receiving)
        if change:
            self._clock.after(delay, lambda: self._tell(Notification(version, change)), self._node.process)
            return
        first = self._limiter.deadline is None
        self._limiter.add(version)
        if first:
            deadline = self._limiter.deadline
            assert deadline is not None
            self._clock.after(max(delay, deadline - self._clock.now), self._take, self._node.process)

    def _take(self) -> None:
        version = self._limiter.take(max(self._clock.now, self._limiter.deadline or 0.0))
        if version is not None:
            self._tell(Notification(version))

    def watch(self, members: Sequence[Any], version: int) -> None:
        if members is self._members:
            return
        self._members = members
        index = self._node.cluster.rank_of(members, self._node.id) if members else None
        nodes = () if index is None else linked(index, len(members))
        before, by_id = self._watched, self._node.cluster.by_id
        self._watched = tuple(by_id[members[i].node].index for i in nodes)
        for i in self._watched:
            if i not in before and self._node.cluster.nodes[i].process.gone:
                self.lost(self._node.cluster.nodes[i])

    def lost(self, node: Node) -> None:
        """The agent of a neighbour has ended."""
        if node.index in self._watched and not self._node.process.gone:
            self._tell(PeerLinkLost(node.id))
            self._clock.after(self._fabric.refusal, partial(self._refused, node), self._node.process)

    def _refused(self, node: Node) -> None:
        if node.index in self._watched:
            self._tell(PeerRefused(node.id))
            self._clock.after(0.5, partial(self._refused, node), self._node.process)

    def _tell(self, news: Any) -> None:
        if self._node.thread is not None:
            self._node.thread.receive(news)


class WorkingEvent(Event):
    """`threading.Event` whose waits take the processor time of what the task has executed before."""

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster.clock)
        self._cluster = cluster

    def wait(self, timeout: float | None = None) -> bool:
        node = self._cluster.running
        if node is not None:
            node.pause_for_work(self._cluster.model.processor.turn)
        return super().wait(timeout)
