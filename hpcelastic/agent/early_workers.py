"""Workers that start before they have a place in a round.

After the loss of a worker, the others continue without it while another one imports modules and builds its model in
its place. A node that joins a running round does the same. Once the workers wait for a place, which
`hpcelastic.training.rounds` reports, the node offers them, and they join at the end of a step.

A script allows an early start if its workers reach the function that is called in each round without a process group.
The agent learns this from the workers of earlier rounds, or from other nodes.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from hpcelastic.agent.event_loop import EventLoop
from hpcelastic.agent.failure_texts import describe_exit
from hpcelastic.agent.workers import WorkerGroup
from hpcelastic.protocol.assignment import Assignment


class EarlyWorkers:
    """The workers of this node that are in no round, apart from those of the last round.

    ``make`` returns a new group. ``changed`` is called when fewer workers are starting than before. ``report`` is
    called with lines for people.
    """

    def __init__(
        self,
        loop: EventLoop,
        make: Callable[[Assignment], WorkerGroup],
        changed: Callable[[], None],
        report: Callable[[str], None],
    ) -> None:
        self._loop, self._make, self._changed, self._report = loop, make, changed, report
        self._allowed = self._failed = False
        self._groups: dict[int, WorkerGroup] = {}
        """A group for each of these workers, by local rank."""

    @property
    def allowed(self) -> bool:
        """Whether the script allows an early start, as far as is known."""
        return self._allowed and not self._failed

    def allow(self, allowed: bool) -> None:
        """Note that the script allows an early start, or does not."""
        self._allowed = allowed

    @property
    def begun(self) -> bool:
        """Whether workers have been started early, or it has failed."""
        return bool(self._groups) or self._failed

    @property
    def waiting(self) -> set[int]:
        """The local ranks of the workers that wait for a place."""
        return {local_rank for local_rank, group in self._groups.items() if group.parked}

    @property
    def starting(self) -> set[int]:
        """The local ranks of the workers that do not wait yet."""
        return self._groups.keys() - self.waiting

    def start(self, estimate: Assignment, local_ranks: Collection[int], environ: Mapping[str, str]) -> list[int]:
        """Start workers with these local ranks. They see ``estimate`` as their assignment.

        Return the local ranks of those that could be started. The next round starts the others.
        """
        started = list[int]()
        for local_rank in sorted(local_ranks):
            rank, role_rank = estimate.first_rank, estimate.role_first_rank
            if local_rank in estimate.local_ranks:
                rank, role_rank = estimate.rank_of(local_rank), estimate.role_rank_of(local_rank)
            part = replace(estimate, first_rank=rank, role_first_rank=role_rank, seats=(local_rank,), early=True)
            group = self._make(part)
            try:
                group.start_early(environ)
            except (OSError, RuntimeError) as error:  # for example, the limit of processes or threads is reached
                self._start_failed(local_rank, error)
                break
            self._groups[local_rank] = group
            started.append(local_rank)
            for pidfd in group.running:
                self._watch(local_rank, pidfd)
            for line in group.spawn_requests:
                self._loop.watch(line, lambda seat=local_rank, line=line: self._spawned(seat, line))  # type: ignore[misc]
        return started

    def owns(self, pid: int) -> bool:
        """Return whether ``pid`` is one of these workers."""
        return any(pid in group.pids.values() for group in self._groups.values())

    def note_parked(self, pid: int) -> None:
        """The worker waits for a place."""
        for group in self._groups.values():
            group.note_parked(pid)
        self._changed()

    def hand_over(self, local_ranks: Collection[int]) -> list[WorkerGroup]:
        """Return the groups of the workers that wait and have places in a round now.

        Workers with places that are still starting are killed, because the round starts them anew.
        """
        for local_rank in self.starting.intersection(local_ranks):
            self._kill(local_rank)
        handed = [self._groups.pop(local_rank) for local_rank in local_ranks if local_rank in self._groups]
        for group in handed:
            for pidfd in group.running:
                self._loop.unwatch(pidfd)
        return handed

    def stop(self) -> None:
        """Kill all of these workers. They have no state that is worth saving."""
        for local_rank in list(self._groups):
            self._kill(local_rank)

    def _kill(self, local_rank: int) -> None:
        group = self._groups.pop(local_rank)
        for fd in (*group.running, *group.spawn_requests):
            self._loop.unwatch(fd)
        group.kill()

    def _watch(self, local_rank: int, pidfd: int) -> None:
        self._loop.watch(pidfd, lambda: self._ended(local_rank, pidfd))

    def _spawned(self, local_rank: int, line: int) -> None:
        self._loop.unwatch(line)
        try:
            worker = self._groups[local_rank].complete_spawn(line)
        except (OSError, RuntimeError) as error:
            self._kill(local_rank)
            self._start_failed(local_rank, error)
            self._changed()
            return
        self._watch(local_rank, worker.pidfd)

    def _start_failed(self, local_rank: int, error: Exception) -> None:
        what = f"the worker with local rank {local_rank} cannot be started before it has a place in a round"
        self._report(f"{what}: {error}; the next round starts it")
        self._failed = True

    def _ended(self, local_rank: int, pidfd: int) -> None:
        """A worker has ended. The next round starts it anew. If it has failed, the script does not allow this."""
        self._loop.unwatch(pidfd)
        group = self._groups.pop(local_rank)
        worker, exit_code = group.reap(pidfd)
        group.close()
        log = f"; log: {worker.log}" if worker.log else ""
        what = f"the worker with local rank {local_rank} has ended before it had a place in a round"
        self._report(f"{what}: {describe_exit(exit_code)}; the next round starts it anew{log}")
        self._failed = self._failed or exit_code >= 0
        self._changed()
