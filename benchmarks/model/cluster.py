"""A run on the nodes of the model, and what happens to it."""

import gc
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import median
from typing import Any

from greenlet import getcurrent

from benchmarks.model.filesystem import Mount, Servers, counted_utime
from benchmarks.model.node import Node, WorkingEvent
from benchmarks.model.parameters import Model
from benchmarks.model.resources import Meter, Queue
from hpcelastic.doctor.verdict import FilesystemReport, advise
from hpcelastic.protocol.changes import changed, unpack
from hpcelastic.protocol.decide import Decision
from hpcelastic.protocol.rows import column
from hpcelastic.protocol.settings import NodeRange, RestartSettings, Settings
from hpcelastic.protocol.state import State, View, name_of
from hpcelastic.storage.mounts import Mount as Mounted
from hpcelastic.storage.paths import RunPaths
from tests.protocol.under_test import CONNECT, FILES, KNOWN, RENDEZVOUS, RUN, Code
from tests.simulation.clock import Clock, Process, Task
from tests.simulation.filesystem import Server, Traits

_STEP = 0.02
"""Virtual seconds between two looks at the result."""


@dataclass(frozen=True)
class Effort:
    """What an event has cost, until the last node had its round."""

    seconds: float
    """Until the last node had started the workers of the round."""

    requests: int
    """To the metadata server, of all nodes together."""

    most: int
    """Of one node, at most."""

    messages: int
    read: int
    """Bytes from the data server to all nodes."""

    processor: float
    """Processor time in seconds, of all nodes together. On shared processors, that until the last node had started
    the workers: what other nodes do after they have started theirs may still wait then."""


class Cluster:
    """A run on ``size`` nodes. ``least`` is the minimum number of nodes of a round; None for all of them."""

    def __init__(self, size: int, model: Model, least: int | None = None) -> None:
        self.size, self.model = size, model
        self.clock = Clock(Random(0))
        self.code = Code(())  # of its own, because modules in it are replaced
        self.code.system.start(self.clock.random)
        self.servers = Servers(self.clock, model)
        self.server = Server(self.clock, self.clock.random, Traits(pace=0.0))
        nodes = NodeRange(least or size, size)
        self.settings = advise(Settings(nodes, restarts=RestartSettings(0)), FilesystemReport(safe=True))
        self.paths: Any = RunPaths(self.code.system.path("/run"))  # type: ignore[arg-type]  # as good as a Path
        self.running: Node | None = None
        """The node whose task runs at this moment."""

        self.messages = 0
        self.failed: list[str] = []
        self.round = 0
        """The newest round of which a node has started workers."""

        self._running_in: dict[int, int] = {}
        self._used_at_start = 0.0
        """The processor time of all nodes together when a node started workers last; 0 if they share no processors."""

        self._states: dict[tuple[int, bytes], tuple[State, State, float]] = {}
        """States by the one before and the change: the one before, the state, and the seconds to find it."""

        self._ranks: tuple[Any, dict[str, int]] = (None, {})
        self._replace_modules()
        self._create()
        self._processors = Queue(self.clock, model.processor.shared) if model.processor.shared else None
        self.by_id: dict[str, Node] = {}
        self.nodes: list[Node] = []
        self._make_nodes(restart=0)

    def _replace_modules(self) -> None:
        """Let the code take time where the simulation of faults does not."""
        code, system = self.code, self.code.system
        code.module("hpcelastic.storage.mounts").mount_of = lambda path: Mounted("lustre", "model", "/")
        code.module("os").utime = counted_utime(lambda: system.mount)
        code.module("threading").Event = lambda: WorkingEvent(self)
        code.module("threading").Thread = self._thread
        code.module("json").loads = self._loads
        code.module(KNOWN).changed, code.module(KNOWN).unpack = self._changed, bytes
        code.module(RENDEZVOUS).decide = partial(self._decide, code.decide.decide)

    def _thread(self, target: Callable[[], None], **_: Any) -> Task:
        assert self.running is not None
        return Task(self.running.process, target, self.running.entered)

    def _loads(self, data: bytes | str) -> Any:
        """`json.loads`, which takes the time of decoding what follows from it too."""
        if self.running is not None and self.clock.task is not None and len(data) > 1000:
            self.running.pause_for_work(len(data) * self.model.processor.byte)
        return self.code.system.parsed(data)

    def _decide(self, decide: Callable[[State, View], Decision], state: State, view: View) -> Decision:
        """`decide`, whose time has passed when the node looks whether another one was faster."""
        decision = decide(state, view)
        if self.running is not None and self.clock.task is not None:
            self.running.pause_for_work()
        return decision

    def _changed(self, before: State, packed: bytes) -> State:
        """`changed`, executed once for all nodes: ten thousand states would not fit into memory. All need its time."""
        _, state, seconds = self._states.get((id(before), packed)) or self._first_changed(before, packed)
        if self.running is not None:
            self.running.pause_for_work(seconds)
        return state

    def _first_changed(self, before: State, packed: bytes) -> tuple[State, State, float]:
        """Execute a change as `_changed` does. One measured time would be that of all nodes, so it is a median."""
        times = []
        for _ in range(3):
            began = time.thread_time()
            state = changed(before, unpack(packed))
            state.ranks  # noqa: B018  # each node needs them
            times.append(time.thread_time() - began)
        found = self._states[id(before), packed] = before, state, median(times)
        if self.running is not None:
            self.running.meter.resume()
        return found

    def _create(self) -> None:
        system = self.code.system
        system.mount = Mount(
            self.server,
            self.servers,
            Process(self.clock),
            "user",
            lambda: self.clock.now,
            Meter(Queue(self.clock), 0.0),
        )
        for directory in (self.paths.register, self.paths.leases):
            self.code.module(FILES).make_directory(directory)
        self.code.module(RUN).open_run(self.backend(), "scale", self.settings, "user")

    def _make_nodes(self, restart: int) -> None:
        self.nodes = [Node(self, index, self._processors or Queue(self.clock), restart) for index in range(self.size)]
        self.by_id |= {node.id: node for node in self.nodes}

    def backend(self) -> Any:
        """The backend of the run, opened by the process that runs at this moment."""
        return self.code.module(CONNECT).open_agent_backend(self.paths, "scale", self.settings.rendezvous)

    def rank_of(self, members: Any, node: str) -> int | None:
        """Return the place of a node among the members of a round."""
        if members is not self._ranks[0]:
            self._ranks = members, {node: index for index, node in enumerate(column(members, "node"))}
        return self._ranks[1].get(node)

    def workers_started(self, node: Node, round: int) -> None:
        node.started[round] = self.clock.now
        self._running_in[round] = self._running_in.get(round, 0) + 1
        self._used_at_start = self._processors.done if self._processors else 0.0
        self.round = max(round, self.round)

    def lost(self, node: Node) -> None:
        """All processes of a node have ended."""
        for other in self.nodes:
            if node.index in other.notifier._watched:
                other.notifier.lost(node)

    # Events

    def start(self) -> None:
        """Start all agents.

        The collection of garbage is off from here on, because its pauses grow with the number of nodes in this process.
        """
        gc.collect()
        gc.freeze()
        gc.disable()
        for node in self.nodes:
            node.start()

    def requeue(self, pause: float) -> None:
        """End all nodes at once, and start their next incarnations after ``pause`` seconds."""
        for node in self.nodes:
            node.process.end()
        self.clock.advance(self.clock.now + pause)
        self._make_nodes(restart=self.nodes[0].restart + 1)
        self.start()

    def lose(self, indexes: Collection[int]) -> None:
        for index in indexes:
            self.nodes[index].end()

    def drain(self, index: int) -> None:
        """A user requests on another machine that a node leaves the run."""
        user, name = Node(self, self.size, Queue(self.clock)), name_of(self.nodes[index].id)
        steer, request = self.code.module(RUN).steer_run, partial(self.code.decide.drain, nodes=(name,))
        Task(user.process, lambda: steer(self.backend(), "user", request, user.notifier), user.entered).start()

    def pause_storage(self, seconds: float) -> None:
        """The metadata server executes nothing for a time."""
        self.servers.metadata.take(seconds)

    def until_round(self, round: int, nodes: int, timeout: float = 600.0) -> Effort:
        """Advance until ``nodes`` nodes have started the workers of a round, and return what that cost."""
        return self.measure(lambda: self._running_in.get(round, 0) >= nodes, timeout)

    def measure(self, done: Callable[[], bool], timeout: float = 600.0) -> Effort:
        before = [node.mount.requests for node in self.nodes]
        began, messages, read = self.clock.now, self.messages, self.servers.read
        used, total = self._used, self.servers.requests
        end = began + timeout
        while not done():
            if self.clock.now >= end:
                raise TimeoutError(f"no round after {timeout:g} s: {self._running_in}; {self.failed[:3]}")
            self.clock.advance(self.clock.now + _STEP)
        starts = [at for node in self.nodes for at in node.started.values() if at > began]
        return Effort(
            max(starts, default=self.clock.now) - began,
            self.servers.requests - total,
            max(node.mount.requests - old for node, old in zip(self.nodes, before, strict=True)),
            self.messages - messages,
            self.servers.read - read,
            (self._used_at_start if starts and self._processors else self._used) - used,
        )

    @property
    def _used(self) -> float:
        """The processor time of all nodes together until now."""
        return self._processors.done if self._processors else sum(node.meter.used for node in self.nodes)

    def idle(self, seconds: float) -> Effort:
        """Let nothing happen for a time."""
        end = self.clock.now + seconds
        return self.measure(lambda: self.clock.now >= end)

    def close(self) -> None:
        """End all tasks."""
        self.clock.hub = getcurrent()
        for node in self.nodes:
            node.process.end()
        gc.enable()
        gc.unfreeze()


def directory_sizes(cluster: Cluster) -> dict[str, int]:
    """Return the number of names in each directory of the run."""
    return {
        path: sum(1 for changes in directory.names.values() if changes[-1][1] is not None)
        for path, directory in cluster.server.directories.items()
    }


def version_size(cluster: Cluster) -> int:
    """Return the bytes of the newest version of the register."""
    directory = cluster.server.directories[str(cluster.paths.register)]
    name = max(name for name in directory.names if name.startswith("v"))
    inode = directory.names[name][-1][1]
    assert inode is not None
    return len(inode.data)
