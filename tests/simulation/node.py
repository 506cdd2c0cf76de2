"""A simulated node: an agent that uses the real code for all decisions.

Its main thread executes the actions of `hpcelastic.protocol.node`. Its rendezvous thread is
`hpcelastic.rendezvous.thread` with all modules below. Its guard uses the code of `hpcelastic.agent.guard_main`. The
effects on processes are simulated here and in `workers`. A fault can occur wherever a task waits.
"""

import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from hpcelastic.errors import HpcElasticError, StoreError
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.peers import News
from hpcelastic.protocol.state import Failure, Member, NodeState, Notice, Phase
from tests.protocol.under_test import GUARD, NODE, RENDEZVOUS, RUN, THREAD
from tests.simulation.clock import Event, Process, Task
from tests.simulation.faults import LEASE, MARGIN
from tests.simulation.filesystem import Mount
from tests.simulation.notifier import Notifier
from tests.simulation.workers import Group

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

_DEPARTURE_TIMEOUT = 5.0
"""Seconds that an agent waits until its departure is published."""

_END_TIMEOUT = 1.0
"""Seconds that an agent of torch waits after it has published its success."""

_EXECUTED_BY = {
    "Publish": "_publish",
    "StartWorkers": "_start",
    "ParkWorkers": "_park",
    "StopWorkers": "_stop",
    "RequestStop": "_ask",
    "ReservePort": "_reserve",
    "Finish": "_end",
}
"""The method for each action. By name, because each simulation loads its own classes."""


class RandomDuration:
    """A `LeaseDuration` that changes at random with each renewal. The protocol is safe for any durations."""

    lateness = 0.0

    def __init__(self, random: Random) -> None:
        self._random, self.seconds = random, LEASE

    @property
    def interval(self) -> float:
        return self.seconds / 3

    def declared_dead(self) -> None: ...

    def set_alone(self, alone: bool) -> bool:
        return False

    def record(self, late: float) -> None:
        self.seconds = self._random.choice([6.0, 8.0, LEASE])


class Node:
    """One incarnation of a node, with its own clock."""

    def __init__(self, world: "Simulation", member: Member) -> None:
        self.world, self.member, self.id = world, member, member.node
        self.leaving = self.frozen = self.cut_off = False
        self.zombie_until = 0.0
        self._rate, self._zero = 1 + world.random.uniform(-0.005, 0.005), world.random.uniform(0, 1000)
        self._agent = self.new_process()
        self._mounts: list[Mount] = []
        self.mount = self.new_mount(self._agent)
        self._notifier = Event(world.clock)
        self._inbox: deque[Any] = deque()
        self._ended: deque[tuple[Group, int, int]] = deque()
        self._fence_reported = self._over = False
        self.groups: list[Group] = []
        self._group: Group | None = None
        """The group that the main thread supervises."""

        self._parked: Group | None = None
        """The group that waits for the next round."""

        self._total = member.local_world_size
        """The number of workers of the node."""

        self._waiting = 0
        """The number of workers that have started outside a round and wait for one."""

        self._starting: set[object] = set()
        """Those that do not wait yet."""

        self.stopping = False
        self._lease_end = 0.0
        self.guard = Guard(self)
        self.notifier = Notifier(self, world.scenario.loss)
        self._thread: Any = None
        code = world.code
        self._state_machine = code.module(NODE).NodeStateMachine(member)
        self._main_task = Task(self._agent, self._main, lambda: setattr(code.system, "mount", self.mount))
        self._main_task.start(0.0)

    def clock(self) -> float:
        """Return the seconds on the node's own monotonic clock."""
        return self._zero + self.world.clock.now * self._rate

    def new_process(self) -> Process:
        return Process(self.world.clock, self._rate)

    def new_mount(self, process: Process) -> Mount:
        mount = Mount(self.world.server, process, self.member.name, self.clock)
        self._mounts.append(mount)
        if self._mounts[0] is not mount:
            mount.copy_faults(self._mounts[0])
        return mount

    @property
    def gone(self) -> bool:
        return self._agent.gone

    @property
    def process(self) -> Process:
        """The process of the agent."""
        return self._agent

    @property
    def present(self) -> bool:
        """True while a process is left that holds the node's port."""
        return not (self.gone and self.guard.process.gone) or any(group.alive for group in self.groups)

    def receive(self, news: News) -> None:
        """Handle news from the network."""
        if self._thread is not None:
            self._thread.receive(news)

    @property
    def running(self) -> int | None:
        """The round whose workers run here at this moment."""
        return next((group.part.round for group in self.groups if group.running), None)

    @property
    def starting(self) -> bool:
        return self._state_machine.part is not None and self._group is None

    @property
    def has_unread_round(self) -> bool:
        """True if a notification that a round runs has arrived and is not read yet."""
        return bool(self._inbox) and getattr(self._inbox[0], "state", self.world.state).phase is Phase.RUNNING

    # Main thread

    def _main(self) -> None:
        world = self.world
        backend = self._open_backend()
        found = self._find(backend)
        rendezvous = world.code.module(RENDEZVOUS).Rendezvous(
            backend,
            self.id,
            world.scenario.settings,
            self.clock,
            notifier=self.notifier,
            held_until=self._held_until,
            first=found,
        )
        if world.scenario.profile.changes_leases:
            rendezvous._lease.duration = RandomDuration(world.random)
        self._thread = world.code.module(THREAD).RendezvousThread(
            rendezvous, self.member, world.scenario.settings.rendezvous.poll, self._deliver, lambda: None
        )
        self._execute(self._state_machine.begin(world.state))
        self._thread.start()
        while not self._over:
            self._notifier.wait()
            self._notifier.clear()
            self._turn()
        self._part()

    def _open_backend(self) -> Any:
        """Open the backend of the run. An agent that cannot do so ends, and is started again."""
        while True:
            with contextlib.suppress(StoreError):
                return self.world.backend()
            self._main_task.pause(1.0)

    def _find(self, backend: Any) -> Any:
        """Read the run, as an agent does before it joins; None if the filesystem fails."""
        with contextlib.suppress(HpcElasticError):
            return self.world.code.module(RUN).read_run(backend, self.clock)
        return None

    def _turn(self) -> None:
        """Handle the guard's reports first: a worker that the guard has killed has not failed."""
        if self._fence_reported:
            self._fence_reported = False
            self._execute(self._state_machine.lease_expired())
        while self._ended:
            self._worker_ended(*self._ended.popleft())
        if self._state_machine.seconds_to_stop(self.clock()) == 0.0:
            self._execute(self._state_machine.stop_timed_out())
        while self._inbox and not self._over:
            message = self._inbox.popleft()
            if callable(message):
                message()
            elif isinstance(message, Notice):
                self._execute(self._state_machine.leave(message, self.clock(), self._polls))
            elif isinstance(message, HpcElasticError):
                self._store_failed(message)
            else:
                self._follow(message)
        self._over = self._over or (self._state_machine.leaving and self._state_machine.part is None)

    @property
    def _polls(self) -> bool:
        return self._group is not None and not self.world.scenario.profile.final and self._group.polls

    def _follow(self, observation: Any) -> None:
        transition = None
        while transition is None or transition.actions:
            transition = self._state_machine.observe(
                observation.state,
                observation.lease,
                self.clock(),
                settled=observation.settled,
                polls=self._polls,
            )
            self._execute(transition)

    def _store_failed(self, error: HpcElasticError) -> None:
        self.world.log(f"{self.id}: {str(error).rsplit('/', 1)[-1][:150]}")
        if not isinstance(error, StoreError):
            self.world.judge(partial(self.world.referee.broken, f"{self.id}: {error}"))
        self._execute(self._state_machine.store_failed())

    def _held_until(self, end: float) -> None:
        self.guard.tell("until", repr(end))
        if end > self._lease_end:
            self.world.renewed(self, end - self.clock())
        self._lease_end = end

    def _deliver(self, message: Any) -> None:
        self._inbox.append(message)
        self.world.clock.after(self.world.random.uniform(0, 0.05), self._notifier.set, self._agent)

    def _execute(self, transition: Any) -> None:
        self._state_machine = transition.machine
        for action in transition.actions:
            getattr(self, _EXECUTED_BY[type(action).__name__])(action)

    def _publish(self, _: Any) -> None:
        self.member = self._state_machine.member
        self._thread.publish(self.member)

    def _reserve(self, _: Any) -> None:
        self._state_machine = self._state_machine.with_port(self.world.random.randrange(1024, 65536))

    def _start(self, action: Any) -> None:
        world, part = self.world, action.part
        self._main_task.pause(world.random.uniform(0, 0.2))
        self.guard.tell("arm", repr(action.lease_from))
        self._main_task.pause(world.random.uniform(0, 0.1))
        world.log(f"{self.id} starts round {part.round} as group rank {part.group_rank}")
        self._take_early(part.local_world_size)
        group = self._group = Group(self, part, len(self.groups), self._parked)
        self.groups.append(group)
        self._parked = None
        world.judge(partial(world.started, self, part))
        self._main_task.pause(world.random.uniform(0, 0.05))
        self.guard.tell("group", str(group.id), repr(action.lease_from))

    def _park(self, action: Any) -> None:
        """Park the workers, or stop them if they cannot be parked."""
        group, world = self._group, self.world
        if not world.scenario.profile.parks or (world.random.random() < 0.3 and not world.calm):
            self._stop_group()
            self._start_early(group)
            return
        self._group = None
        if group is None:
            return
        self.stopping = True
        self._main_task.pause(world.random.uniform(0, 1))
        self.stopping = False
        self._keep(group)
        self._disarm_guard(group)
        world.log(f"{self.id} has parked the workers of round {group.part.round}")
        world.echo(group.part.round)
        self._start_early(group)

    # Workers that start outside a round

    def _start_early(self, group: Group | None) -> None:
        """Start workers in the place of those that are lost, if those of the last ``group`` polled, and offer the
        others."""
        if not self.world.scenario.profile.starts_early or self._state_machine.leaving:
            return
        if group is None or not group.round.answers_requests:
            self._state_machine = self._state_machine.with_workers(self._offer, holds=False)
            return
        for _ in range(self._total - self._left - self._waiting - len(self._starting)):
            worker = object()
            self._starting.add(worker)
            self.world.clock.after(self.world.random.choice([0.1, 2.0, 20.0]), partial(self._early_ready, worker))
        holds = bool(self._starting) and self.world.random.random() < 0.5
        self._state_machine = self._state_machine.with_workers(self._offer, holds=holds)
        if holds:
            self.world.clock.after(0.3, partial(self._tell_main, self._offer_changed), self._agent)

    @property
    def _left(self) -> int:
        """The number of workers that are parked."""
        return len(self._parked.alive) if self._parked is not None else 0

    @property
    def _offer(self) -> Any:
        starting = len(self._starting)
        return self.world.code.module(NODE).WorkerOffer(self._total - starting, starting, True)

    def _early_ready(self, worker: object) -> None:
        """A worker that starts early may have ended instead: then the next round starts it, and it is offered, too."""
        if worker in self._starting and not self.gone:
            self._starting.discard(worker)
            self._waiting += self.world.random.random() < 0.8
            self._tell_main(self._offer_changed)

    def _offer_changed(self) -> None:
        self._execute(self._state_machine.workers_offered(self._offer, holds=False))
        self._thread.call(lambda rendezvous: rendezvous.poll_again())

    def _tell_main(self, call: Callable[[], None]) -> None:
        self._inbox.append(call)
        self._notifier.set()

    def _take_early(self, count: int) -> None:
        """Take workers into a round of ``count``: those that wait first, those that are still starting last."""
        absent = self._total - self._left - self._waiting - len(self._starting)
        count -= self._left
        waiting = min(self._waiting, count)
        self._waiting -= waiting
        for _ in range(count - waiting - absent):
            self._starting.pop()

    def _keep(self, group: Group) -> None:
        """Keep the workers that are left of a group for the next round."""
        if group.alive:
            group.park()
            self._parked = group

    def _stop(self, _: Any) -> None:
        """Stop all workers."""
        self._waiting = 0
        self._starting.clear()
        self._stop_group()

    def _stop_group(self) -> None:
        """Stop the workers, first with a request and then by a kill. Meanwhile the main thread does nothing else."""
        if self._parked is not None:
            self._parked.end()
            self._parked = None
        group, self._group = self._group, None
        if group is None:
            return
        self.stopping = True
        self._main_task.pause(self.world.random.uniform(0, 4) if group.alive else 0.0)
        self.stopping = False
        group.end()
        self._disarm_guard(group)
        self.world.log(f"{self.id} has stopped round {group.part.round}")
        self.world.echo(group.part.round)

    def _disarm_guard(self, group: Group) -> None:
        """Tell the guard that no process of the group is left."""
        self.guard.tell("gone", str(group.id))
        self.guard.tell("disarm")

    def _ask(self, action: Any) -> None:
        assert self._group is not None
        self._group.ask()
        self.world.clock.after(action.seconds / 0.99 + 0.01, self._notifier.set, self._agent)

    def _end(self, _: Any) -> None:
        self._over = True

    def _worker_ended(self, group: Group, local_rank: int, code: int) -> None:
        if group is not self._group:
            return
        part: Assignment = group.part
        if code:
            rank = part.first_rank + local_rank
            failure = Failure(part.round, self.id, rank, local_rank, code, "crashed", timestamp=self.clock())
            self._execute(self._state_machine.worker_failed(failure))
        elif (group.parked or not group.alive) and not any(other is group for other, _, _ in self._ended):
            self._group = None
            self._disarm_guard(group)
            if group.parked:
                self._keep(group)
            if group.early:
                self._execute(self._state_machine.workers_stopped(group.parked))
                return
            final = self.world.scenario.profile.final
            self._execute(self._state_machine.workers_succeeded(final))
            if final:
                self._end_agent()

    def _end_agent(self) -> None:
        """End the agent some time after its success is published, although the run may continue.

        It waits at least as long as `hpcelastic.pytorch.session.ExternalAgentSession.wait_for_end` does.
        """
        published = (self.id, NodeState.SUCCEEDED, self.member.round) in self.world.referee.published_states

        def end() -> None:
            self._over = True
            self._notifier.set()

        if published:
            self.world.clock.after(self.world.random.uniform(_END_TIMEOUT, 5), end, self._agent)
        else:
            self.world.clock.after(0.1, self._end_agent, self._agent)

    def _part(self) -> None:
        self.leaving = True
        if self._parked is not None and self._parked.alive:
            self.world.judge(partial(self.world.referee.broken, f"{self.id} leaves while workers of it are parked"))
        if self._group is not None:
            self._stop(None)
        self._execute(self._state_machine.depart())
        self._thread.stop(_DEPARTURE_TIMEOUT)
        if self.member.final:
            with contextlib.suppress(OSError, StoreError):
                self.world.code.module(RUN).conclude_run(self.world.backend(), self.id)
        self.world.log(f"{self.id} has ended")
        self._die(kill=False)

    # Faults and other events

    def worker_ended(self, group: Group, local_rank: int, code: int) -> None:
        """Notify the main thread."""

        def heard() -> None:
            self._ended.append((group, local_rank, code))
            self._notifier.set()

        self.world.clock.after(self.world.random.uniform(0, 0.1), heard, self._agent)

    def fence_reported(self) -> None:
        """The guard has killed the workers. It reports this in a pipe that the main thread reads first."""
        self._fence_reported = True
        self.world.clock.after(self.world.random.uniform(0, 0.1), self._notifier.set, self._agent)

    def fenced(self, groups: list[Group]) -> None:
        """The guard kills the workers of ``groups``. The others notice that, except for workers that have ended."""
        self.world.referee.disturbed(self.id, self.world.clock.now + LEASE + MARGIN)
        for group in groups:
            left = bool(group.alive)
            if left:
                self.world.log(f"{self.id} is fenced in round {group.part.round}")
                if not self.stopping and not group.parked:  # else the round had ended for this node already
                    self.world.referee.fenced(group.part.round)
            group.end()
            if left:
                self.world.echo(group.part.round)

    def fail(self, by_itself: bool, group: Group | None = None) -> None:
        """Let a worker fail."""
        group = group or self._group
        if group is None or not group.running:
            return
        local_rank = min(group.alive)
        round, rank = group.part.round, group.part.first_rank + local_rank
        self.world.log(
            f"{self.id}: rank {rank} fails in round {round}{'' if by_itself else ', because a peer is gone'}"
        )
        if by_itself:
            self.world.referee.crashed.add(round)
        group.crash(local_rank)
        self.world.echo(round)

    def leave(self) -> None:
        """The node is warned that it must leave."""
        self.leaving = True
        self._inbox.append(Notice("SIGTERM", self.world.random.choice([0.0, 3.0, 15.0])))
        self._notifier.set()

    def freeze(self, *, agent_only: bool = False) -> None:
        self.frozen = True
        self._agent.freeze()
        if not agent_only:
            for process in (self.guard.process, *(group.process for group in self.groups)):
                process.freeze()
        for node in self.world.live():
            node.notifier.silent(self)

    def arm(self, operations: int, strike: Callable[[], None], *, at_work: bool) -> None:
        """Let ``strike`` happen in the middle of an operation: of the workers if ``at_work``, else of the
        rendezvous."""
        running = [group.mount for group in self.groups if group.running] if at_work else []
        (running or [self.mount])[-1].arm(operations, strike)

    def disarm(self) -> None:
        for mount in self._mounts:
            mount.disarm()

    def hang(self) -> None:
        self.cut_off = True
        for mount in self._mounts:
            mount.hang()

    def release(self) -> bool:
        """Thaw the node and connect its disk again. Return True if it was frozen."""
        thawed, self.frozen, self.cut_off = self.frozen, False, False
        for process in (self._agent, self.guard.process, *(group.process for group in self.groups)):
            if process.frozen:
                process.thaw()
        for mount in self._mounts:
            mount.release()
        for node in self.world.live() if thawed else ():
            node.notifier.heard(self)
        return thawed

    def forget(self) -> None:
        """End all processes, because the simulation has ended."""
        for process in (self._agent, self.guard.process, *(group.process for group in self.groups)):
            process.end()

    def set_error_rate(self, likely: float) -> None:
        for mount in self._mounts:
            mount.set_error_rate(likely)

    def slow_down(self, factor: float) -> None:
        for mount in self._mounts:
            mount.slow_down(factor)

    def kill(self) -> None:
        """The machine is lost with all its processes at once."""
        self._die(kill=True)
        for mount in self._mounts:
            mount.die()

    def kill_agent(self) -> None:
        """The agent dies, and its guard kills the workers."""
        self._gone()
        self._agent.end()
        self.mount.die(power=False)
        self.guard.agent_died()

    def kill_marked_processes(self) -> None:
        """Kill all processes that are left of the node. Its next incarnation on the same machine does this."""
        for group in self.groups:
            group.end()

    def _die(self, kill: bool) -> None:
        self._gone()
        rounds = {group.part.round for group in self.groups if group.alive}
        self.guard.process.end()
        for group in self.groups:
            group.end()
        for round in sorted(rounds):
            self.world.echo(round)
        if not kill:
            self.mount.die(power=False)
        self._agent.end()

    def _gone(self) -> None:
        self.world.referee.gone_at[self.id] = self.world.clock.now
        for node in self.world.live():
            if node is not self:
                node.notifier.lost(self)
        # The departure may be missing from a listing that other nodes read after the connection has broken.
        unseen = self.world.scenario.traits.listing if self.member.node_state is NodeState.LEFT else float("inf")
        self.world.referee.disturbed(self.id, self.world.clock.now + unseen)


class Guard:
    """The guard process of a node. It reads lines, and watches with the real code."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.process = node.new_process()
        self._module = node.world.code.module(GUARD)
        self._watch = self._module._Watch(node.id)
        self._lines: deque[tuple[str, ...]] = deque()
        self._timer = float("inf")

    def tell(self, *line: str) -> None:
        """Send a line of the agent."""
        self._lines.append(line)
        self._after(self._delay(), self._receive)

    def agent_died(self) -> None:
        self._after(self._delay(), self._agent_died)

    def _agent_died(self) -> None:
        self._awake(self._watch.kill)
        self.process.end()

    def _delay(self) -> float:
        return self.node.world.random.uniform(0, 0.05)

    def _receive(self) -> None:
        if self._lines:
            self._awake(self._watch.check)
            self._after(self._delay(), self._take)

    def _take(self) -> None:
        while self._lines:
            line = self._lines.popleft()
            self._awake(lambda line=line: self._watch.handle_message(*line))
        self._wait()

    def _wait(self) -> None:
        timeout, now = self._watch.timeout(), self.node.world.clock.now
        if timeout is not None and now + timeout < self._timer:
            self._timer = now + timeout + 1e-6
            self._after(timeout / 0.995 + self._delay(), self._time_out)

    def _time_out(self) -> None:
        self._timer = float("inf")
        self._awake(self._watch.check)
        self._wait()

    def _after(self, delay: float, action: Any) -> None:
        self.node.world.clock.after(delay, action, self.process)

    def _awake(self, act: Any) -> None:
        self.node.world.code.system.guarded = self
        act()

    # The operations of the code under test on processes

    def boottime(self) -> float:
        return self.node.clock()

    def kill_group(self, id: int, _: int) -> None:
        self.node.fenced([self.node.groups[id]])

    def kill_marked_processes(self, _: str) -> None:
        self.node.fenced([group for group in self.node.groups if group.alive])

    def guard_reported(self, word: str) -> None:
        if word == "killed":
            self.node.fence_reported()
