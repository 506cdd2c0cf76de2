"""A deterministic simulation of a run with all agents, workers, files and faults, from one scenario.

A `Node` runs the real code of an agent on a simulated machine. A `Referee` checks every step, from the real content of
the server and the real actions of the workers. The only source of time and randomness is the scenario.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from errno import EDQUOT, ENOSPC, EROFS
from functools import lru_cache, partial
from random import Random
from typing import Any

from greenlet import getcurrent

from hpcelastic.errors import HpcElasticError
from hpcelastic.protocol.state import Member, NodeState, Phase, State
from hpcelastic.storage.lease_names import member_of, parse
from hpcelastic.storage.paths import RunPaths
from tests.protocol.under_test import (
    CONNECT,
    DECIDE,
    FILE_BACKEND,
    GUARD,
    KEYVALUE,
    LEADERS,
    MODES,
    POLLING,
    RUN,
    Patch,
    load,
)
from tests.simulation.clock import Clock, Process, Task
from tests.simulation.faults import LEASE, MARGIN, Fault, Scenario
from tests.simulation.filesystem import SLOW, Mount, Server
from tests.simulation.node import Node
from tests.simulation.referee import Referee, Violation
from tests.simulation.workers import Round

SETTLED = 150.0
"""Seconds within which a run must end after the last disturbance."""

_THAW = 0.6
"""Seconds after a thaw in which workers may continue or start, until the guard has run: nothing can stop them earlier.
The fence refuses what they publish then."""

_SLOWDOWN = 10.0
"""The factor by which a slow disk prolongs operations."""

_LOOK = 1.0
"""Seconds within which the poll after a renewal has ended."""


@lru_cache(maxsize=1024)
def _member_in_name(text: str) -> tuple[Member | None, bool]:
    """Return the member in the name of a lease, and whether the name holds all of it."""
    name = parse(text)
    return member_of(name) if name else (None, False)


_CALM = 60.0
"""Seconds after the last fault from which on no worker fails because of another one, and each can be parked."""


class Simulation:
    """One run, in simulated seconds."""

    def __init__(self, scenario: Scenario, patches: tuple[Patch, ...] = ()) -> None:
        self.scenario = scenario
        self.random = Random(f"delays of {scenario.seed}")
        self.clock = Clock(self.random)
        self.history: list[str] = []
        self.referee = Referee()
        self.code = load(*patches)
        self.code.system.start(self.random)
        self.code.module(MODES).is_shared.cache_clear()  # so that a history does not depend on those before it
        for module in (KEYVALUE, FILE_BACKEND):  # so that versions are removed within a short history
            self.code.module(module)._KEPT_VERSIONS = 2
        large = self.random.random() < 0.5
        self.code.module(LEADERS)._LARGE = 1 if large else 64
        # The nodes of a large run, apart from its leaders and a few others, read the leases rarely.
        self.code.module(POLLING)._MAX_LEASE_RATE = self.random.choice([1.0, 128.0**2]) if large else 128.0**2
        self.code.module(LEADERS).COUNT = self.random.choice([1, 3]) if large else 3
        self.code.module(LEADERS)._WATCHERS = self.random.choice([1, 10]) if large else 10
        self._simulate_processes_of_guard()
        self.server = Server(self.clock, self.random, scenario.traits, self._published, self._listed)
        self.paths: Any = RunPaths(self.code.system.path("/run"))  # type: ignore[arg-type]  # as good as a Path
        self.nodes: list[Node] = []
        self._by_id: dict[str, Node] = {}
        self.rounds: dict[int, Round] = {}
        self._at_renewal: dict[str, Callable[[float], None]] = {}
        """Faults by node. Each occurs when the node's guard gets a new lease that lasts the given number of seconds."""

        self.struck: Counter[str] = Counter()
        self.versions = 0
        self.state = State("run", scenario.settings)
        self._formed: dict[int, State] = {}
        self._names = [f"n{i}" for i in range(1, scenario.size + 2)]
        self._job = 1
        self._user_works = False
        self._processes: list[Process] = []
        self._create()
        for name in self._names[: scenario.size]:
            self.clock.after(self.random.uniform(0, 3), partial(self._arrive, name, False))
        for fault in scenario.faults:
            self.clock.after(fault.at, partial(self.strike, fault))

    def _create(self) -> None:
        """Create the run before any fault can occur."""
        system = self.code.system
        process = Process(self.clock)
        system.mount = Mount(self.server, process, "user", lambda: self.clock.now)
        system.mount.calm = True
        for directory in (self.paths.register, self.paths.leases, system.path("/run/published")):
            self._make(directory)
        self.code.module(RUN).open_run(self.backend(), "run", self.scenario.settings, "user")

    def backend(self) -> Any:
        """The backend of the run, opened by the process that runs at this moment."""
        return self.code.module(CONNECT).open_backend(self.paths)

    def _make(self, directory: Any) -> None:
        if directory not in self.server.directories:
            self._make(directory.parent)
            directory.mkdir()

    def _simulate_processes_of_guard(self) -> None:
        """Replace the guard's operations on processes by simulated ones."""
        system = self.code.system
        vars(self.code.module(GUARD)).update(
            boottime=lambda: system.guarded.boottime(),
            kill_group=lambda group, signum: system.guarded.kill_group(group, signum),
            kill_marked_processes=lambda marker, *_: system.guarded.kill_marked_processes(marker),
            _send=lambda word: system.guarded.guard_reported(word),
        )

    # A whole run

    @property
    def now(self) -> float:
        return self.clock.now

    def advance(self, until: float) -> None:
        """Execute all events that are due by ``until``. Raises Violation."""
        self.clock.advance(until)

    def run(self) -> State:
        """Execute all faults, then wait until the run ends. Return the final state. Raises Violation if it cannot
        end."""
        try:
            self.advance(max((fault.at + fault.lasts for fault in self.scenario.faults), default=0.0))
            self.settle()
            self.advance(self.now + 5)
            self.referee.finish()
        except Exception as error:  # an unexpected error is a violation too
            broken = str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
            raise Violation(f"{broken}\n{self.scenario.settings}\n" + "\n".join(self.history)) from error
        finally:
            self.end_all_tasks()
        return self.state

    def settle(self) -> None:
        """Inject no more faults. The run must now end."""
        self.server.refuses = 0
        self._at_renewal.clear()
        for node in self.nodes:
            node.disarm()
            node.set_error_rate(0.0)
            node.slow_down(1.0)
            self._release(node)
        grace = self.state.settings.rendezvous.checkpoint_grace
        # Nodes that were about to leave have left, and no round forms with a dead one, for which others would leave.
        self.advance(self.now + LEASE + MARGIN + 1.0 + grace)
        nodes = self.state.settings.nodes
        for name in self._names:
            if nodes.most_of(node.member.topology for node in self.live() if not node.leaving) < nodes.min:
                self.come(Fault(self.now, "come", self._names.index(name), knowing=True))
        deadline = self.now + SETTLED + self.scenario.traits.negative + self._reading_interval
        while self.live() and self.now < deadline:
            self.advance(self.now + 1.0)
        if not self.state.phase.final or self.live():
            stuck = {node.id: f"{node.member.node_state.value} {node.member.round}" for node in self.live()}
            where = f"{self.state.phase.value}, round {self.state.round}"
            raise Violation(f"stuck in {where}: {self.state.reason}; {stuck}")

    @property
    def _reading_interval(self) -> float:
        """Seconds between two readings of the leases by a node that is no leader."""
        return float(len(self.nodes) ** 2 / self.code.module(POLLING)._MAX_LEASE_RATE)

    def end_all_tasks(self) -> None:
        """End all tasks."""
        self.clock.hub = getcurrent()
        for node in self.nodes:
            node.forget()
        for process in self._processes:
            process.end()

    def log(self, event: str) -> None:
        self.history.append(f"{self.now:8.3f}  {event}")

    def node(self, id: str) -> Node:
        return self._by_id[id]

    def live(self) -> list[Node]:
        return [node for node in self.nodes if not node.gone]

    # What the referee gets

    def judge(self, look: Callable[[], None]) -> None:
        """Let the referee check. Its violation ends the simulation, in whatever task it is found."""
        try:
            look()
        except Violation as violation:
            self.clock.stop(violation)

    def started(self, node: Node, part: Any) -> None:
        self.referee.started(node.id, part, self._formed[part.round])
        self.check_workers()

    def check_workers(self) -> None:
        rounds = {node.running for node in self.nodes if node.running is not None and self.now >= node.zombie_until}
        self.referee.running(rounds)

    def _published(self, path: str, data: bytes, by: Mount) -> None:
        """A name on the server has got a content."""
        if path.endswith(".json"):
            self.judge(partial(self._document, path, data, by))
        elif path == "/run/published/latest":
            self.judge(partial(self._moved, path))

    def _listed(self, path: str, by: Mount) -> None:
        """A directory is listed."""
        if path == self.paths.leases:
            for node in self.nodes:
                if node.mount is by:
                    self.referee.looked(node.id, self.now)

    def _document(self, path: str, data: bytes, by: Mount) -> None:
        if not data and self._outdated(path):
            return  # a symbolic link to a draft that was removed: no process reads it, and its creator removes it
        lease = path.startswith(self.paths.leases)
        named, complete = _member_in_name(path.rpartition("/")[2]) if lease else (None, False)
        document = None
        try:
            document = self.code.system.parsed(data)
        except ValueError:
            # The content of a lease may be lost with its node. A late rename may follow. Then the name alone counts.
            if named is None or not by.process.gone:
                self.referee.broken(f"{path} was published before it was complete: {data!r}")
        if path.startswith(self.paths.register):
            self._version(int(path[-15:-5]), document)
        elif lease:
            name_counts = complete or document is None
            self.referee.published(named if name_counts else self.code.system.decode(Member, document))
        elif path.startswith("/run/counters/"):
            self.referee.summed(int(document["value"]["value"]), by.id)

    def _outdated(self, path: str) -> bool:
        """Return True if a later version than that of ``path`` exists."""
        directory, _, name = path.rpartition("/")
        there = self.server.directory(directory).names.items()
        return any(changes[-1][1] is not None and other.startswith("v") and other > name for other, changes in there)

    def _moved(self, path: str) -> None:
        inode = self.server.entry(path)
        assert inode is not None and inode.target is not None
        self.referee.moved(int(inode.target.partition(".")[0].partition("-")[2]), inode.target)

    def _version(self, number: int, document: Any) -> None:
        new, writer = self.code.system.decode(State, document["value"]), document["writer"]
        old, self.state = self.state, new
        self.versions += 1
        self.log(f"{writer}: v{number} {new.phase.value} {new.round}: {new.reason} {dict(new.spent) or ''}")
        if new.phase is Phase.RUNNING:
            self._formed[new.round] = new
        if number == 1 or (old.phase.final and new.phase is Phase.JOINING and writer == "user"):
            self.referee.reopened(new)
        else:
            self.referee.committed(number, old, new, writer, self.now, self._reading_interval)

    @property
    def calm(self) -> bool:
        """True if the last fault was long ago."""
        return self.now > self.scenario.profile.until + _CALM

    def echo(self, round: int) -> None:
        """Workers of ``round`` have ended on a node. The workers of other nodes may fail because of it.

        Not for ever: if workers are started early, each such failure causes another round, whose end may cause others.
        So does each worker that cannot be parked.
        """
        if self.calm:
            return
        for node in self.nodes:
            for group in node.groups:
                if group.running and group.part.round == round and self.random.random() < self.scenario.profile.echo:
                    fail = partial(node.fail, False, group)
                    self.clock.after(self.random.uniform(0, 2), fail, group.process)

    # Faults

    def strike(self, fault: Fault) -> None:
        """Let a fault happen if there is a node to which it can happen."""
        if getattr(self, fault.kind)(fault):
            self.struck[fault.kind] += 1

    def _victim(self, fault: Fault) -> Node | None:
        candidates = {n.member.name: n for n in self.live() if not n.leaving and not n.frozen and not n.cut_off}
        who = fault.who % len(self._names)
        order = self._names[who:] + self._names[:who]
        return next((candidates[name] for name in order if name in candidates), None)

    def _hit(self, fault: Fault, how: str, strike: Callable[[Node], None]) -> bool:
        """Let a fault hit a node, at once or in the middle of an operation of its rendezvous thread."""
        node = self._victim(fault)
        if node is None:
            return False

        def struck() -> None:
            if not (node.gone or node.frozen or node.cut_off):
                self._disturb(node, how)
                strike(node)

        node.arm(fault.operations, struck, at_work=fault.knowing) if fault.operations else struck()
        return True

    def crash(self, fault: Fault) -> bool:
        """A worker fails by itself."""
        node = self._victim(fault)
        if node is not None:
            node.fail(by_itself=True)
        return node is not None

    def kill(self, fault: Fault) -> bool:
        """A node is lost: agent, guard and workers at once."""
        return self._hit(fault, "is killed", lambda node: node.kill())

    def kill_agent(self, fault: Fault) -> bool:
        """An agent dies, and its guard and workers do not."""
        return self._hit(fault, "loses its agent", lambda node: node.kill_agent())

    def freeze(self, fault: Fault) -> bool:
        """Nothing happens on a node for a while."""
        return self._hit(fault, "is frozen", partial(self._freeze, fault.lasts, False))

    def oversleep(self, fault: Fault) -> bool:
        """A node is frozen until the others have continued without it."""
        return self.freeze(replace(fault, lasts=LEASE + MARGIN + 4.0 + fault.lasts / 2))

    def pause(self, fault: Fault) -> bool:
        """An agent is stopped for a while. Its workers and its guard continue."""
        return self._hit(fault, "has its agent stopped", partial(self._freeze, fault.lasts, True))

    def _freeze(self, seconds: float, agent_only: bool, node: Node) -> None:
        node.freeze(agent_only=agent_only)
        self.clock.after(seconds, partial(self._release, node))

    def cut_off(self, fault: Fault) -> bool:
        """The file operations of a node hang for a while. Its workers continue."""

        def strike(node: Node) -> None:
            node.hang()
            self.clock.after(fault.lasts, partial(self._release, node))

        return self._hit(fault, "is cut off", strike)

    def miss_the_end(self, fault: Fault) -> bool:
        """An agent that has polled since it renewed its lease is stopped when a worker fails on another node, until the
        lease has almost expired. The others wait for it, and may still see the old lease when it is renewed."""
        node = self._victim(fault)
        if node is not None:
            self._at_renewal[node.id] = partial(self._miss, fault, node)
        return node is not None

    def renewed(self, node: Node, left: float) -> None:
        """The guard of a node gets a new lease, of which ``left`` seconds are left."""
        if node.running is not None and node.id in self._at_renewal:
            self.clock.after(_LOOK, partial(self._at_renewal.pop(node.id), left - _LOOK))

    def _miss(self, fault: Fault, node: Node, left: float) -> None:
        if not (node.gone or node.frozen or node.cut_off or node.leaving):
            self._disturb(node, "has its agent stopped")
            self._freeze(left - 0.1 - 0.15 * (fault.lasts % 1), True, node)
            self.crash(replace(fault, who=fault.who + 1))

    def partition(self, fault: Fault) -> bool:
        """The network of the workers is partitioned. On both sides they hang or fail."""
        groups = [group for node in self.live() for group in node.groups if group.running]
        if len({group.node.id for group in groups}) < 2:
            return False
        self.log("the workers' network is cut in two")
        for group in groups:
            group.round.broken = True
            self.referee.crashed.add(group.part.round)
            fail = partial(group.node.fail, True, group)
            self.clock.after(self.random.uniform(0, fault.lasts), fail, group.process)
        return True

    def leave(self, fault: Fault) -> bool:
        """A node leaves after a warning."""
        node = self._victim(fault)
        if node is None:
            return False
        self._disturb(node, "leaves")
        node.leave()
        return True

    def come(self, fault: Fault) -> bool:
        """A node joins, or returns as a new incarnation, which may know that the previous ones are dead."""
        present = {node.member.name for node in self.live()}
        who = fault.who % len(self._names)
        order = self._names[who:] + self._names[:who]
        name = next((name for name in order if name not in present), None)
        if name is not None:
            self._arrive(name, fault.knowing)
        return name is not None

    def requeue(self, _: Fault) -> bool:
        """The whole job is killed and started again. Each node knows that its previous incarnation is dead."""
        for node in self.live():
            self._disturb(node, "is killed")
            node.kill()
        self._job += 1
        for name in self._names[: self.scenario.size]:
            self.clock.after(self.random.uniform(0, 10), partial(self._arrive, name, True))
        return True

    def flaky(self, fault: Fault) -> bool:
        """Some file operations of a node fail, with or without effect."""

        def strike(node: Node) -> None:
            node.set_error_rate(0.02 + fault.lasts / 100)
            self.clock.after(fault.lasts, partial(self._calm, node))

        return self._hit(fault, "has a flaky disk", strike)

    def slow(self, fault: Fault) -> bool:
        """The file operations of a node take ten times as long."""

        def strike(node: Node) -> None:
            node.slow_down(_SLOWDOWN)
            self.clock.after(fault.lasts, partial(self._calm, node, _SLOWDOWN * SLOW))

        return self._hit(fault, "has a slow disk", strike)

    def full(self, fault: Fault) -> bool:
        """No process can write for a while."""
        self.server.refuses = (ENOSPC, EDQUOT, EROFS)[fault.who % 3]
        for node in self.live():
            self._disturb(node, "finds the filesystem full")
        self.clock.after(fault.lasts, self._emptied)
        return True

    def close(self, _: Fault) -> bool:
        """The user closes the run."""
        module = self.code.module(RUN)
        return self._user(lambda: module.close_run(self.backend(), "user", "closed by the user"))

    def drain(self, fault: Fault) -> bool:
        """The user drains a node, and allows it again later."""
        name, undo = self._names[fault.who % len(self._names)], fault.lasts == 0.0
        module, drain = self.code.module(RUN), self.code.module(DECIDE).drain
        for node in self.live():
            if node.member.name == name:
                self._disturb(node, "is drained")
        request = partial(drain, nodes=(name,), undo=undo)
        done = self._user(lambda: module.steer_run(self.backend(), "user", request, confirm=True))
        if not undo:
            self.clock.after(fault.lasts, partial(self._undo_drain, replace(fault, lasts=0.0)))
        return done

    def _undo_drain(self, fault: Fault) -> None:
        """The user repeats the request until the node is not drained any more.

        A run that has ended does not change, and an outdated read may show that it has ended. The request to drain the
        node may not have been executed yet.
        """
        if self._user_works or self._names[fault.who % len(self._names)] in self.state.drained:
            if not self.state.phase.final:
                self.drain(fault)
            self.clock.after(1.0, partial(self._undo_drain, fault))

    def scale(self, fault: Fault) -> bool:
        """The user requests another number of nodes."""
        min_nodes = self.scenario.settings.nodes.min
        module, scale = self.code.module(RUN), self.code.module(DECIDE).scale
        request = partial(scale, nodes=min_nodes + fault.who % 3)
        return self._user(lambda: module.steer_run(self.backend(), "user", request, confirm=True))

    def reopen(self, _: Fault) -> bool:
        """The user reopens a run that has ended, and starts agents for it."""
        if not self.state.phase.final:
            return False

        def work() -> None:
            self.code.module(RUN).reopen_run(self.backend(), "user", self.state.settings)
            self.log("the user reopens the run")
            for i, _name in enumerate(self._names):
                self.come(Fault(self.now, "come", i))

        return self._user(work)

    def _user(self, work: Callable[[], object]) -> bool:
        """Execute a command of the user, one at a time. It is repeated if it fails."""
        if self._user_works:
            return False
        system, process = self.code.system, Process(self.clock)
        mount = Mount(self.server, process, "user", lambda: self.clock.now)

        def insist() -> None:
            while self._user_works:
                try:
                    work()
                    self._user_works = False
                except HpcElasticError:
                    system.sleep(1.0)

        self._user_works = True
        self._processes.append(process)
        Task(process, insist, lambda: setattr(system, "mount", mount)).start()
        return True

    def _arrive(self, name: str, knowing: bool) -> None:
        if name in {node.member.name for node in self.live()}:
            return
        before = [node for node in self.nodes if node.member.name == name]
        order = self._names.index(name)
        dead = tuple(node.id for node in before) if knowing else ()
        member = Member(
            node=f"{name}@{len(before)}",
            node_state=NodeState.READY,
            round=-1,
            local_world_size=self.random.randint(1, 3),
            address=f"10.0.0.{order}",
            port=0,
            order=order,
            job=f"job.{self._job}" if self.scenario.job_known else "",
            job_nodes=self.scenario.size if self.scenario.job_known else 0,
            topology=f"top.s{order % (2 if self.scenario.profile.within else 3)}",
            dead=dead,
        )
        for node in before if knowing else ():
            node.kill_marked_processes()
        self.log(f"{member.node} comes{' and knows ' + ', '.join(dead) + ' dead' if dead else ''}")
        node = self._by_id[member.node] = Node(self, member)
        self.nodes.append(node)

    def _disturb(self, node: Node, how: str) -> None:
        self.log(f"{node.id} {how}")
        self.referee.disturbed(node.id, float("inf"))

    def _recovers(self, node: Node, after: float = 0.0) -> None:
        """The disturbance of a node ends when the operation that began last has ended, ``after`` seconds from now at
        most."""
        self.referee.disturbed_until[node.id] = self.now + after + LEASE + MARGIN + self.scenario.traits.negative

    def _release(self, node: Node) -> None:
        if (node.frozen or node.cut_off) and not node.gone:
            self.log(f"{node.id} goes on")
            self._recovers(node)
            if node.release():
                node.zombie_until = self.now + _THAW
                self.clock.after(_THAW, lambda: self.judge(self.check_workers))

    def _calm(self, node: Node, after: float = 0.0) -> None:
        if not node.gone:
            node.set_error_rate(0.0)
            node.slow_down(1.0)
            self._recovers(node, after)

    def _emptied(self) -> None:
        self.server.refuses = 0
        self.log("the filesystem has space again")
        for node in self.live():
            self._recovers(node)
