"""The worker group of a simulated node in one round: its duration, its end and its publications."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hpcelastic.errors import HpcElasticError
from hpcelastic.protocol.assignment import Assignment
from tests.protocol.under_test import FENCE, KEYVALUE, PUBLISH
from tests.simulation.clock import Task

if TYPE_CHECKING:
    from tests.simulation.node import Node


class Round:
    """All groups of a round. In a collective, each waits for the others."""

    def __init__(self, size: int, answers_requests: bool) -> None:
        self.size = size
        self.answers_requests = answers_requests
        """Whether the workers poll in every step for a request to stop."""

        self.stops_at: float | None = None
        """Time at which all of them reach the end of a step, after a request."""

        self.started: set[int] = set()
        self.broken = False
        """Whether a group has ended before it had finished."""


class Group:
    """The workers of ``node`` in the round of ``part``, as one process. ``parked`` is the group that it continues."""

    def __init__(self, node: "Node", part: Assignment, id: int, parked: "Group | None" = None) -> None:
        self.node, self.part, self.id, self._before = node, part, id, parked
        self.alive = set(range(part.local_world_size))
        self.process = node.new_process()
        self.round: Round = node.world.rounds.setdefault(
            part.round, Round(part.group_world_size, node.world.random.random() < 0.6)
        )
        self.early = False
        """Whether the workers ended because of a request to stop."""

        self.parked = False
        """Whether the workers wait for the next round. Their processes are alive."""

        self.round.started.add(part.group_rank)
        self.mount = node.new_mount(self.process)
        self._later(self._finish, node.world.random.uniform(8, 30))
        profile = node.world.scenario.profile
        if profile.publishes and part.group_rank < 2:
            self._task(self._publish)
        if profile.counts:
            self._task(self._count)

    @property
    def running(self) -> bool:
        """True while a process of the group can act."""
        return bool(self.alive) and not self.parked and not self.process.frozen

    def park(self) -> None:
        """Park the workers. Threads that they have started continue to publish with the token of the round."""
        self.parked = True
        self.round.broken = self.round.broken or not self.early

    def end(self) -> None:
        """Kill all workers."""
        if self.alive:
            self.alive.clear()
            self.round.broken = True
        self._end_processes()

    @property
    def polls(self) -> bool:
        """Whether the workers poll for requests to stop."""
        return self.round.answers_requests and bool(self.alive)

    def ask(self) -> None:
        """Request a stop at the end of a step, the same step for all groups."""
        world = self.node.world
        if self.round.stops_at is None:
            self.round.stops_at = world.clock.now + world.random.uniform(0.1, 6)
        for node in world.nodes:
            for group in node.groups:
                if group.round is self.round:
                    group._later(group._stop_early, max(0.0, self.round.stops_at - world.clock.now))

    def _stop_early(self) -> None:
        """Stop at the end of the step. If a group is missing, the workers hang in the step instead."""
        if len(self.round.started) == self.round.size and not self.round.broken and self.alive:
            self.early = True
            self.node.world.log(f"{self.node.id} stops round {self.part.round} at the end of a step")
            if self.node.world.scenario.profile.parks:
                self.park()
                self.node.worker_ended(self, min(self.alive), 0)
            else:
                self._end_well()

    def crash(self, local_rank: int) -> None:
        """One worker has failed."""
        self.alive.discard(local_rank)
        self.round.broken = True
        self.node.worker_ended(self, local_rank, 1)

    def _finish(self) -> None:
        """Succeed together when the groups of all nodes exist. Without one of them the workers hang."""
        if len(self.round.started) < self.round.size:
            self._later(self._finish, 1.0)
        elif not self.round.broken and self.alive and not self.parked:
            world = self.node.world
            world.log(f"{self.node.id} finishes round {self.part.round}")
            world.referee.finished.add((self.node.id, self.part.round))
            self._end_well()

    def _end_well(self) -> None:
        ended, self.alive = sorted(self.alive), set()
        self._end_processes()
        for local_rank in ended:
            self.node.worker_ended(self, local_rank, 0)

    def _end_processes(self) -> None:
        self.process.end()
        if self._before is not None:
            self._before.end()

    def _later(self, action: Callable[[], None], delay: float) -> None:
        self.node.world.clock.after(delay, action, self.process)

    def _task(self, body: Callable[[], None]) -> None:
        system, mount = self.node.world.code.system, self.mount
        Task(self.process, body, lambda: setattr(system, "mount", mount)).start(self.node.world.random.uniform(0, 1))

    # The user's script

    def _publish(self) -> None:
        world, round, step = self.node.world, self.part.round, 0
        code, directory = world.code, world.code.system.path("/run/published")
        fence = code.module(FENCE).Fence("run", round)
        while not self._tried(lambda: fence.claim(directory)):
            code.system.sleep(1.0)
        world.judge(lambda: world.referee.claimed(round))
        while True:
            code.system.sleep(world.random.uniform(1, 4))
            step += 1
            target = f"round-{round}.{self.part.group_rank}.{step}"
            self._tried(
                lambda target=target: code.module(PUBLISH).publish_link(  # type: ignore[misc]
                    directory / "latest", target, fence
                )
            )

    def _count(self) -> None:
        world = self.node.world
        counter: Any = world.code.module(KEYVALUE).KeyValueStore(world.code.system.path("/run/counters"), self.node.id)
        while True:
            world.code.system.sleep(world.random.uniform(0.2, 4))
            world.referee.begun[self.mount.id] += 1
            if self._tried(lambda: counter.add("steps", 1)):
                world.referee.counted += 1

    def _tried(self, work: Callable[[], Any]) -> bool:
        try:
            work()
        except (OSError, HpcElasticError):
            return False
        return True
