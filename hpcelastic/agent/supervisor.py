"""The supervisor of a node's workers: starts the group of a round, watches it, and parks or stops it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcelastic.agent.binding import binding, format_ranges
from hpcelastic.agent.early_workers import EarlyWorkers
from hpcelastic.agent.environment import RunFacts
from hpcelastic.agent.event_loop import EventLoop
from hpcelastic.agent.failures import describe_exit, describe_failure, within
from hpcelastic.agent.file_timers import FileTimers
from hpcelastic.agent.guard_main import boottime
from hpcelastic.agent.round_store import RoundStore
from hpcelastic.agent.session import Session
from hpcelastic.agent.settings import AgentSettings
from hpcelastic.agent.workers import Worker, WorkerGroup, WorkerResources
from hpcelastic.errors import HpcElasticError
from hpcelastic.ipc.control_page import ControlPage, StopRequest
from hpcelastic.ipc.marks import Mark
from hpcelastic.ipc.worker_channel import Entered, Interrupted, Message, Parked
from hpcelastic.protocol.assignment import Assignment, prospect
from hpcelastic.protocol.events import (
    StopRequested,
    WorkerEnded,
    WorkerInterrupted,
    WorkersParked,
    WorkersPoll,
    WorkersStartEarly,
    WorkersStarted,
    WorkersStopped,
)
from hpcelastic.protocol.node import RequestStop, WorkerOffer
from hpcelastic.protocol.state import Failure, State
from hpcelastic.rendezvous.rendezvous import Rendezvous

_HOLD = 0.3
"""Seconds for which a node that has lost workers does not ask for a place, so that their successors are in the next
round, if they are ready by then."""

_DESCRIPTION_DELAY = 0.2
"""Seconds for which the publication of a failure waits for its description, which the shared filesystem must return."""


@dataclass(frozen=True)
class Launch:
    """The settings and resources with which a node starts its workers, in every round."""

    settings: AgentSettings
    run: RunFacts
    resources: WorkerResources
    control_page: ControlPage
    timers: FileTimers
    environ: Mapping[str, str]
    workers: int
    """The number of workers of this node."""


class Supervisor:
    """Supervises the worker group of this node. ``failed`` is called with the failure of a worker.

    A group whose last worker ends well is reported to the node state machine. If it stopped on request, that waits
    until no other node's workers need the store that this node serves.
    """

    def __init__(
        self, session: Session, loop: EventLoop, launch: Launch, store: RoundStore, failed: Callable[[Failure], None]
    ) -> None:
        self._session, self._loop, self._launch, self._store = session, loop, launch, store
        self._control_page, self._failed = launch.control_page, failed
        self.others_left = True
        """Whether workers of the round may be left on other nodes."""

        self._group: WorkerGroup | None = None
        self._parked: WorkerGroup | None = None
        """The group whose workers wait for the next round."""

        self._early = EarlyWorkers(loop, self._make_group, self._offer_changed, session.report)
        self._hold_ends: float | None = None
        """The time until which the node does not ask for a place, because workers may be there by then."""

        self._started_at = 0.0
        """The time at which the workers of this round were started or resumed."""

        self._starts_fast = False
        """Whether the last worker that was started in a round was ready to train within `_HOLD`."""

        self._interruption: tuple[float, Failure] | None = None
        """The first failure of a collective in this round, and the time at which it counts as a failure of the worker
        unless another cause ends the round before."""

        self._stopping: WorkerGroup | None = None
        self._stopped_early = False
        """True from the end of workers that stopped on request until it is reported."""

        self._polled_round = -1
        """The last round whose workers were seen to poll the control page."""

        if launch.resources.channels is not None:
            launch.resources.channels.serve(self._is_worker, self._received)

    @property
    def idle_workers(self) -> int:
        """The number of workers that wait for a round, or start without one."""
        return len(self._waiting | self._early.starting)

    @property
    def _waiting(self) -> set[int]:
        """The local ranks of the workers that wait for a round."""
        parked = [] if self._parked is None else self._parked.running.values()
        return {worker.local_rank for worker in parked} | self._early.waiting

    # Actions

    def start(self, part: Assignment, lease_from: float) -> None:
        """Start the workers of a round, under the lease that was renewed at ``lease_from``. Resume those that wait."""
        part = replace(part, seats=self._seats(part.local_world_size))
        group = self._make_group(part)
        last = part.first_rank + part.local_world_size - 1
        ranks = f"rank {last}" if last == part.first_rank else f"ranks {part.first_rank}..{last}"
        where = f"store at {part.master_addr}:{part.master_port}"
        self._session.report(f"round {part.round}: {ranks} of {part.world_size}, {where}")
        self._session.remove_old_stores(part)
        for local_rank in part.local_ranks:
            self._control_page.grant(local_rank, part.round)
        parked = [] if self._parked is None else [self._parked]
        for group_ in parked:
            for pidfd in group_.running:
                self._loop.unwatch(pidfd)
        self._parked, self._hold_ends = None, None
        early = self._early.hand_over(part.local_ranks)
        try:
            group.start(self._launch.environ, lease_from, *parked, *early)
        except OSError as error:
            raise HpcElasticError(f"{self._session.member.name}: cannot start the workers: {error}") from error
        for each in early:
            each.close()
        if group.resumed:
            self._session.report(f"round {part.round}: resumed {_ranks(group.resumed)} in the same processes")
        self._store.offer(part, lease_from)
        self._group, self._started_at = group, boottime()
        self._launch.timers.begin(group)
        for pidfd in group.running:
            self._watch_worker(pidfd)
        for line in group.spawn_requests:
            self._watch_spawn_request(line)
        self._log_started(group)

    def polls(self) -> bool:
        """Return whether the workers poll for requests to stop."""
        return self._group is not None and self._control_page.polled(self._group.part.round)

    def request_stop(self, request: RequestStop) -> None:
        """Request that the workers stop at the end of a step."""
        assert self._group is not None
        round = self._group.part.round
        self._control_page.request_stop(StopRequest(round, boottime() + request.seconds, request.reason, request.save))
        limit = f"within {request.seconds:.0f} s"
        self._session.report(f"round {round}: asking the workers to stop {limit}: {request.reason}")
        self._session.log(StopRequested(round=round, seconds=request.seconds, reason=request.reason))

    def park(self, why: str) -> None:
        """Park the workers that can be parked, and stop the others and the store."""
        group = self._group
        if group is None:  # the workers have stopped on request
            self._stopped_early = False
            self._store.close()
            return
        settings = self._launch.settings.workers
        grace = settings.park_grace
        self._end(group, why, lambda ignoring: group.park(grace, settings.stop_grace, ignoring))
        self._after_round(group, why)

    def stop(self, why: str) -> None:
        """Stop the workers, if any run or are parked, and the store. On return, no process of theirs is left."""
        self._early.stop()
        group, self._group = self._group or self._parked, None
        self._parked = self._hold_ends = None
        if group is None:
            self._stopped_early = False
            self._store.close()
            return
        grace = self._launch.settings.workers.stop_grace
        self._end(group, why, lambda ignoring: group.stop(grace, ignoring))
        self._session.log(WorkersStopped(round=group.part.round, reason=why))

    def _end(self, group: WorkerGroup, why: str, end: Callable[[list[int]], list[Worker]]) -> None:
        """End the group's part in its round by ``end``, which is called with the local ranks that ignore SIGTERM."""
        self._group, self._interruption, self._stopped_early = None, None, False
        self._launch.timers.end()
        for fd in (*group.running, *group.spawn_requests):
            self._loop.unwatch(fd)
        self._session.report(f"round {group.part.round}: stopping the workers: {why}")
        self._stopping = group
        self.report_progress()
        blocked = end(self._ignoring_sigterm(group.part))
        self._stopping = None
        self._store.close()  # last: workers may need it to end well
        if blocked:
            blocked_ranks = _ranks([worker.rank for worker in blocked])
            self._session.report(f"killed, and gone once the shared filesystem answers: {blocked_ranks}")

    def _after_round(self, group: WorkerGroup, why: str) -> None:
        """Keep the parked workers of the group for the next round, and start others early if the script allows it."""
        if group.parked:
            self._keep(group, why)
        else:
            self._session.log(WorkersStopped(round=group.part.round, reason=why))
        there = self._waiting | self._early.starting
        missing = [local_rank for local_rank in range(self._launch.workers) if local_rank not in there]
        # Workers that do not poll would lose the work since the last checkpoint once more when the missing ones join.
        may_grow = self._early.allowed and self._control_page.polled(group.part.round)
        if missing and may_grow and not self._session.state_machine.leaving:
            self._hold_ends = boottime() + _HOLD if self._starts_fast else None
            self._start_early(group.part, missing)
        self._set_offer()

    def _start_early(self, estimate: Assignment, local_ranks: Sequence[int]) -> None:
        """Start workers that have no place in a round yet; see `EarlyWorkers`."""
        for local_rank in local_ranks:
            self._control_page.revoke(local_rank)  # a worker that was killed has not done it itself
        self._early.start(estimate, local_ranks, self._launch.environ)
        ranks = f"local rank{'s' * (len(local_ranks) > 1)} {format_ranges(local_ranks)}"
        self._session.report(f"starting {ranks}; the others continue without {ranks} until then")
        self._session.log(WorkersStartEarly(round=estimate.round, local_ranks=tuple(local_ranks)))

    def start_all_early(self, state: State) -> None:
        """Start all workers of a node that joins a running round, unless they have been started."""
        if not self._early.begun:
            self._early.allow(True)
            workers = self._launch.workers
            self._start_early(prospect(state, self._session.member, workers), range(workers))
            self._set_offer()

    def _offer(self) -> WorkerOffer:
        """Return the workers that can be in the next round."""
        starting, workers = len(self._early.starting), self._launch.workers
        if starting and self._session.spec.settings.nodes.multiple > 1:
            starting = workers  # groups of ranks span whole nodes
        if not starting:
            self._hold_ends = None
        return WorkerOffer(workers - starting, starting, self._early.allowed)

    def seconds_to_hold(self, now: float) -> float | None:
        """Return the seconds for which the node does not ask for a place yet; None if it does not hold back."""
        return None if self._hold_ends is None else max(0.0, self._hold_ends - now)

    def end_hold(self) -> None:
        """Ask for a place without the workers that are still starting."""
        self._hold_ends = None
        self._offer_changed()

    def _offer_changed(self) -> None:
        """Publish which workers can be in the next round."""
        offer = self._offer()
        self._session.apply(self._session.state_machine.workers_offered(offer, holds=self._hold_ends is not None))
        self._session.call_rendezvous(Rendezvous.poll_again)

    def _set_offer(self) -> None:
        """Publish the same together with the next state of the node."""
        offer, machine = self._offer(), self._session.state_machine
        self._session.state_machine = machine.with_workers(offer, holds=self._hold_ends is not None)

    def _make_group(self, part: Assignment) -> WorkerGroup:
        return WorkerGroup(part, self._launch.settings, self._launch.run, self._launch.resources)

    def _seats(self, count: int) -> tuple[int, ...]:
        """Choose the local ranks of the workers of a round: those that wait for it first, those that start last."""
        waiting, starting = self._waiting, self._early.starting
        every = range(self._launch.workers)
        return tuple(sorted(sorted(every, key=lambda each: (each not in waiting, each in starting, each))[:count]))

    def _keep(self, group: WorkerGroup, why: str) -> None:
        """Keep the parked workers of the group for the next round."""
        self._parked = group
        for pidfd in group.running:
            self._loop.unwatch(pidfd)
            self._loop.watch(pidfd, lambda pidfd=pidfd: self._parked_worker_ended(pidfd))  # type: ignore[misc]
        ranks = tuple(sorted(worker.rank for worker in group.running.values()))
        self._session.report(f"round {group.part.round}: waiting for the next round: {_ranks(ranks)}")
        self._session.log(WorkersParked(round=group.part.round, reason=why, ranks=ranks))

    def _ignoring_sigterm(self, part: Assignment) -> list[int]:
        """Return the local ranks that ignore SIGTERM, because they poll for stop requests; see `training.stop`."""
        return [seat for seat in part.local_ranks if self._control_page.ignores_sigterm(seat, part.round)]

    def signal(self, signum: int) -> None:
        """Forward a signal to the workers."""
        if self._group is not None:
            self._group.send(signum)

    def kill_stopping(self, signum: int) -> None:
        """Send ``signum`` to the workers of a group that is being stopped; may be called in a signal handler."""
        if self._stopping is not None:
            self._stopping.send(signum)

    def report_progress(self) -> None:
        """Pass the progress that workers have reported to the node state machine."""
        progress = self._control_page.progress()
        if progress is not None:
            self._session.state_machine = self._session.state_machine.with_progress(progress)

    def finish_early_stop(self) -> None:
        """Report workers that stopped on request, once no other node needs the store that this node serves."""
        if self._stopped_early and not (self.others_left and self._store.server_pid is not None):
            self._stopped_early = False
            self._store.close()
            self._session.apply(self._session.state_machine.workers_stopped(parked=self._parked is not None))

    def log_polling(self) -> None:
        """Log, once for each round, that its workers poll for stop requests. Called in the rendezvous thread."""
        group = self._group
        if group is not None and group.part.round > self._polled_round and self._control_page.polled(group.part.round):
            self._polled_round = group.part.round
            self._session.log(WorkersPoll(round=self._polled_round))

    # Events

    def _worker_spawned(self, line: int) -> None:
        self._loop.unwatch(line)
        assert self._group is not None
        try:
            worker = self._group.complete_spawn(line)
        except OSError as error:
            raise HpcElasticError(f"{self._session.member.name}: cannot start a worker: {error}") from error
        self._watch_worker(worker.pidfd)
        self._log_started(self._group)

    def _worker_ended(self, pidfd: int) -> None:
        self._loop.unwatch(pidfd)
        assert self._group is not None
        group = self._group
        worker, exit_code = group.reap(pidfd)
        mark = self._control_page.marks(worker.local_rank).newest(group.part.round)
        self._session.log(_end_of_worker(group.part.round, worker.rank, exit_code, mark))
        if exit_code != 0:
            self._worker_failed(group, worker, exit_code)
        elif group.ended:
            self._all_ended(group)

    def _parked_worker_ended(self, pidfd: int) -> None:
        """A process that waited for the next round has ended. Its worker is started anew in the next round."""
        self._loop.unwatch(pidfd)
        assert self._parked is not None
        worker, exit_code = self._parked.reap(pidfd)
        what = f"rank {worker.rank} of round {self._parked.part.round} has ended while it waited for the next round"
        self._session.report(f"{what}: {describe_exit(exit_code)}")
        self._session.log(_end_of_worker(self._parked.part.round, worker.rank, exit_code, None))

    def _is_worker(self, pid: int) -> bool:
        return self._early.owns(pid) or (self._group is not None and pid in self._group.pids.values())

    def _received(self, pid: int, message: Message) -> None:
        group = self._group
        if isinstance(message, Parked) and self._early.owns(pid):
            self._early.note_parked(pid)
        elif group is None or self._early.owns(pid):
            return
        elif isinstance(message, Entered):
            self._starts_fast = boottime() - self._started_at <= _HOLD
            before = self._early.allowed
            self._early.allow(message.early_start)
            if self._early.allowed != before:
                self._offer_changed()
        elif isinstance(message, Parked) and message.round == group.part.round:
            group.note_parked(pid)
            if group.ended:
                self._all_ended(group)
        elif isinstance(message, Interrupted) and message.round == group.part.round:
            rank = next(rank for rank, each in group.pids.items() if each == pid)
            self._interrupted(group.part, rank, message.error)

    def _interrupted(self, part: Assignment, rank: int, error: str) -> None:
        """A collective of a worker has failed. This is probably the effect of a failure on another node."""
        self._session.log(WorkerInterrupted(round=part.round, rank=rank, error=error))
        if self._interruption is not None:
            return
        times = self._session.spec.settings.rendezvous
        timeout = times.lease + times.margin
        self._session.report(
            f"rank {rank}: a collective has failed: {error}; waiting up to {timeout:.0f} s for the cause"
        )
        failure = Failure(
            part.round,
            self._launch.run.node,
            rank,
            part.local_ranks[rank - part.first_rank],
            1,
            error,
            timestamp=time.time(),
        )
        self._interruption = boottime() + timeout, failure

    def seconds_to_blame(self, now: float) -> float | None:
        """Return the seconds until a failed collective counts as a failure of its worker; None if none has failed."""
        return None if self._interruption is None else max(0.0, self._interruption[0] - now)

    def blame(self) -> None:
        """No cause of a failed collective has become known: it counts as a failure of its worker."""
        assert self._interruption is not None
        _, failure = self._interruption
        self._report_failure(failure)
        self._session.apply(self._session.state_machine.worker_failed(failure))

    def _worker_failed(self, group: WorkerGroup, worker: Worker, exit_code: int) -> None:
        """Publish the failure. Its peers wait, so a filesystem that is slow to return its log must not delay that."""
        remark = self._launch.timers.describe_expired(worker)
        failure = Failure(
            round=group.part.round,
            node=self._launch.run.node,
            rank=worker.rank,
            local_rank=worker.local_rank,
            exit_code=exit_code,
            message=describe_exit(exit_code) + remark,
            log=str(worker.log or ""),
            timestamp=time.time(),
        )

        def describe() -> Failure:
            message, traceback, when = describe_failure(exit_code, worker.error_file, worker.log)
            return replace(failure, message=message + remark, traceback=traceback, timestamp=when)

        described = within(_DESCRIPTION_DELAY, describe, late=self._session.deliver)
        self._report_failure(described or failure)
        self._session.apply(self._session.state_machine.worker_failed(described or failure))
        if described is not None:
            self._failed(described)

    def failure_described(self, failure: Failure) -> None:
        """Publish the description of a failure that was published without it."""
        self._report_failure(failure)
        self._session.apply(self._session.state_machine.failure_described(failure))
        self._failed(failure)

    def _report_failure(self, failure: Failure) -> None:
        log = f"; log: {failure.log}" if failure.log else ""
        self._session.report(f"rank {failure.rank} failed: {failure.message}{log}")

    def _all_ended(self, group: WorkerGroup) -> None:
        server = self._store.server_pid
        self._launch.timers.end()
        group.finish(*([server] if server is not None else []))
        self._group = self._interruption = None
        self.report_progress()
        if self._control_page.acknowledged(group.part.round):
            self._session.report(f"round {group.part.round}: the workers have stopped at the end of a step")
            self._after_round(group, "they were asked to stop")
            self._stopped_early = True
            self.finish_early_stop()
        else:
            self._early.stop()
            self._set_offer()
            self._session.apply(self._session.state_machine.workers_succeeded())

    def _log_started(self, group: WorkerGroup) -> None:
        if group.spawn_requests:
            return  # not all workers run yet
        part, processors = group.part, self._launch.resources.processors
        inherited = binding(self._launch.environ)
        self._session.log(
            WorkersStarted(
                round=part.round,
                world_size=part.world_size,
                group_rank=part.group_rank,
                group_world_size=part.group_world_size,
                role_rank=part.role_first_rank,
                role_world_size=part.role_world_size,
                pids=dict(group.pids),
                cpus=inherited["cpus"],
                gpus=inherited.get("gpus"),
                bound=";".join(format_ranges(cpus) for cpus in processors) if any(processors) else None,
                master_addr=part.master_addr,
                master_port=part.master_port,
                resumed=tuple(sorted(group.resumed)) or None,
            )
        )

    def _watch_spawn_request(self, line: int) -> None:
        self._loop.watch(line, lambda: self._worker_spawned(line))

    def _watch_worker(self, pidfd: int) -> None:
        self._loop.watch(pidfd, lambda: self._worker_ended(pidfd))


def _ranks(ranks: Sequence[int]) -> str:
    """Describe the ranks of a node's workers."""
    numbers = format_ranges(ranks)
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"


def _end_of_worker(round: int, rank: int, exit_code: int, mark: Mark | None) -> WorkerEnded:
    """Return the event of the end of a worker, whose last progress mark is ``mark``."""
    ended = WorkerEnded(round=round, rank=rank, exit_code=exit_code)
    if mark is None:
        return ended
    age = max(0.0, boottime() - mark.time / 1e9)
    return replace(ended, mark=mark.kind.name.lower(), mark_value=mark.value, mark_age=float(f"{age:.3f}"))
