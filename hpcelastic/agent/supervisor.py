"""The supervisor of a node's workers: starts the group of a round, watches it, and parks or stops it."""

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hpcelastic.agent.batch_system import STOP_SIGNALS
from hpcelastic.agent.binding import name_ranks
from hpcelastic.agent.event_loop import EventLoop
from hpcelastic.agent.failure_texts import describe_exit
from hpcelastic.agent.failures import PendingFailure, end_of_worker, failure_of, with_description, within
from hpcelastic.agent.guard_main import boottime, kill_group
from hpcelastic.agent.idle_workers import IdleWorkers
from hpcelastic.agent.launch import Launch
from hpcelastic.agent.round_store import RoundStore
from hpcelastic.agent.session import Session
from hpcelastic.agent.stacks import WorkersOfRound
from hpcelastic.agent.started import workers_started
from hpcelastic.agent.training_totals import log_totals
from hpcelastic.agent.worker import Worker
from hpcelastic.agent.workers import WorkerGroup
from hpcelastic.errors import HpcElasticError
from hpcelastic.health.gpu_memory import await_freed_memory
from hpcelastic.health.host_memory import LackOfMemory
from hpcelastic.ipc.control_page import StopRequest
from hpcelastic.ipc.readiness import readable
from hpcelastic.ipc.worker_channel import Entered, Interrupted, Message, Parked
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.events import (
    StopRequested,
    WorkerInterrupted,
    WorkersParked,
    WorkersPoll,
    WorkersStopped,
)
from hpcelastic.protocol.findings import Hang
from hpcelastic.protocol.node import RequestStop
from hpcelastic.protocol.state import Failure

_END_DELAY = 0.2
"""Seconds in which a killed worker ends, unless it is blocked in the kernel."""

_SLOW_END = 5.0
"""Seconds from the exception of a worker to the end of its process, if that frees much memory on a busy node. As long,
the others wait for the cause of the failure of their collectives. It is less than the time in which a hang is named."""

_SIGNAL_DELAY = 1.0
"""Seconds after the end of a worker by a stop signal in which its node leaves, if the signal was for the whole job."""

_DESCRIPTION_DELAY = 0.2
"""Seconds for which the publication of a failure waits for its description, which the shared filesystem must return."""


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

        self.interrupted: Callable[[int], None] = lambda round: None
        """Called with the round in which a collective of a worker has failed."""

        self._group: WorkerGroup | None = None
        self.idle = IdleWorkers(session, loop, launch)
        self._started_at = 0.0
        """The time at which the workers of this round were started or resumed."""

        self._pending = PendingFailure()
        """The first failure of a collective in this round, or of a worker that a stop signal has ended."""

        self._hung: dict[int, str] = {}
        """The verdicts on workers that are killed because they hang, by process id."""

        self._memory = LackOfMemory()
        self._stopping: WorkerGroup | None = None
        self._stopped_early = False
        """True from the end of workers that stopped on request until it is reported."""

        self._polled_round = -1
        """The last round whose workers were seen to poll the control page."""

        if launch.resources.channels is not None:
            launch.resources.channels.serve(self._is_worker, self._received)

    # Actions

    def start(self, part: Assignment, lease_from: float) -> None:
        """Start the workers of a round, under the lease that was renewed at ``lease_from``. Resume those that wait."""
        part = replace(part, seats=self.idle.choose(part.local_world_size))
        group = self._launch.make_group(part)
        last = part.first_rank + part.local_world_size - 1
        ranks = f"rank {last}" if last == part.first_rank else f"ranks {part.first_rank}..{last}"
        where = f"store at {part.master_addr}:{part.master_port}"
        self._session.report(f"round {part.round}: {ranks} of {part.world_size}, {where}")
        self._session.old_rounds.begin(part)
        self._memory.begin()
        for local_rank in part.local_ranks:
            self._control_page.grant(local_rank, part.round)
        try:
            group.start(self._launch.environ, lease_from, *self.idle.hand_over(part))
        except OSError as error:
            raise HpcElasticError(f"{self._session.member.name}: cannot start the workers: {error}") from error
        if group.resumed:
            self._session.report(f"round {part.round}: resumed {name_ranks(group.resumed)} in the same processes")
        self._store.offer(part, lease_from)
        self._group, self._started_at = group, boottime()
        self._launch.timers.begin(group)
        for pidfd in group.running:
            self._loop.watch(pidfd, partial(self._worker_ended, pidfd))
        for line in group.spawn_requests:
            self._loop.watch(line, partial(self._worker_spawned, line))
        self._log_started(group)

    def polls(self) -> bool:
        """Return whether the workers poll for requests to stop."""
        return self._group is not None and self._control_page.polled(self._group.part.round)

    def workers(self) -> WorkersOfRound:
        """Return the workers of this node that are in a round."""
        group = self._group
        return WorkersOfRound(0) if group is None else WorkersOfRound(group.part.round, [*group.running.values()])

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
        seconds = self._end(group, why, lambda ignoring: group.park(grace, settings.stop_grace, ignoring))
        self._after_round(group, why, seconds)

    def stop(self, why: str) -> None:
        """Stop the workers, if any run or are parked, and the store. On return, no process of theirs is left."""
        group, self._group = self._group or self.idle.parked, None
        self.idle.stop()
        if group is None:
            self._stopped_early = False
            self._store.close()
            return
        grace = self._launch.settings.workers.stop_grace
        seconds = self._end(group, why, lambda ignoring: group.stop(grace, ignoring))
        self._session.log(WorkersStopped(round=group.part.round, reason=why, seconds=seconds))

    def _end(self, group: WorkerGroup, why: str, end: Callable[[list[int]], list[Worker]]) -> float:
        """End the group's part in its round by ``end``, which is called with the local ranks that ignore SIGTERM.

        Return the seconds that it took.
        """
        began = boottime()
        self._group, self._stopped_early = None, False
        self._pending.clear()
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
            blocked_ranks = name_ranks([worker.rank for worker in blocked])
            self._session.report(f"killed, and gone once the shared filesystem answers: {blocked_ranks}")
        alive = {worker.process.pid for worker in group.running.values()}
        if held := await_freed_memory(set(group.pids.values()) - alive):
            self._session.report(f"GPUs still hold {sum(held.values()) >> 20} MiB of workers that have ended")
        log_totals(self._session.log, self._control_page, group.part)
        return round(boottime() - began, 6)

    def _after_round(self, group: WorkerGroup, why: str, seconds: float | None = None) -> None:
        """Keep the parked workers of the group for the next round, and start others early if the script allows it."""
        round = group.part.round
        if group.parked:
            self.idle.keep(group)
            ranks = tuple(sorted(worker.rank for worker in group.running.values()))
            self._session.report(f"round {round}: waiting for the next round: {name_ranks(ranks)}")
            self._session.log(WorkersParked(round=round, reason=why, ranks=ranks, seconds=seconds))
        else:
            self._session.log(WorkersStopped(round=round, reason=why, seconds=seconds))
        # Workers that do not poll would lose the work since the last checkpoint once more when the missing ones join.
        self.idle.replace_lost(group.part, allowed=self._control_page.polled(round))

    def _ignoring_sigterm(self, part: Assignment) -> list[int]:
        """Return the local ranks that ignore SIGTERM, because they poll for stop requests; see `training.stop`."""
        return [seat for seat in part.local_ranks if self._control_page.ignores_sigterm(seat, part.round)]

    def signal(self, signum: int) -> None:
        """Forward a signal to the workers."""
        if self._group is not None:
            self._group.send(signum)

    def end_hung(self, hang: Hang) -> None:
        """End a round that hangs: kill the workers of this node that the others wait for.

        If they are unknown, no process is killed: the round ends like one with a failed collective.
        """
        group = self._group
        if group is None or group.part.round != hang.round:
            return
        workers = [worker for worker in group.running.values() if not hang.ranks or worker.rank in hang.ranks]
        if workers and not hang.ranks:
            self._end_by(self._failure(group, workers[0], 1, hang.verdict, collective=True))
            return
        for worker in workers:
            self._hung[worker.process.pid] = hang.verdict
            kill_group(worker.process.pid, signal.SIGKILL)
        ended = readable([worker.pidfd for worker in workers], _END_DELAY)
        if workers and not ended:  # blocked in the kernel: the others must not wait for its end
            message = describe_exit(-signal.SIGKILL) + self._remark(workers[0])
            self._end_by(self._failure(group, workers[0], -signal.SIGKILL, message))

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
            self._session.apply(self._session.state_machine.workers_stopped(parked=self.idle.parked is not None))

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
        self._loop.watch(worker.pidfd, partial(self._worker_ended, worker.pidfd))
        self._log_started(self._group)

    def _worker_ended(self, pidfd: int) -> None:
        self._loop.unwatch(pidfd)
        assert self._group is not None
        group = self._group
        worker, exit_code = group.reap(pidfd)
        self._session.log(end_of_worker(worker, group.part.round, exit_code, self._control_page))
        if -exit_code in STOP_SIGNALS:
            failed = partial(self._worker_failed, group, worker, exit_code)
            self._pending.await_other_cause(_SIGNAL_DELAY, failed, of_ended_worker=True)
        elif exit_code != 0:
            self._worker_failed(group, worker, exit_code)
        elif group.ended:
            self._all_ended(group)

    def _is_worker(self, pid: int) -> bool:
        groups = [group for group in (self._group, self._stopping) if group is not None]
        return self.idle.owns(pid) or any(pid in group.pids.values() for group in groups)

    def _received(self, pid: int, message: Message) -> None:
        group = self._group
        if self.idle.owns(pid):
            self.idle.receive(pid, message)
        elif group is None:
            return
        elif isinstance(message, Entered):
            self.idle.allow(message.early_start, boottime() - self._started_at)
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
        group = self._group
        worker = None if group is None else next((w for w in group.running.values() if w.rank == rank), None)
        if self._pending.at is not None or group is None or worker is None:
            return
        failure = self._failure(group, worker, 1, error, collective=True)
        limit = max(self._session.expiry, _SLOW_END)
        self._session.report(
            f"rank {rank}: a collective has failed: {error}; waiting up to {limit:.0f} s for the cause"
        )
        self._pending.await_other_cause(limit, partial(self._end_by, failure))
        self.interrupted(part.round)

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds until `expire` has something to do; None if nothing is due."""
        due = (self.idle.hold_ends, self._pending.at)
        return min((max(0.0, at - now) for at in due if at is not None), default=None)

    def expire(self, now: float) -> None:
        """Do what is due."""
        if self.idle.hold_ends is not None and now >= self.idle.hold_ends:
            self.idle.end_hold()
        self._pending.expire(now)

    def _end_by(self, failure: Failure) -> None:
        """End the round by a failure of a worker that has not ended."""
        self._report_failure(failure)
        self._session.apply(self._session.state_machine.worker_failed(failure))

    def _worker_failed(self, group: WorkerGroup, worker: Worker, exit_code: int) -> None:
        """Publish the failure. Its peers wait, so a filesystem that is slow to return its log must not delay that."""
        remark = self._remark(worker) or self._memory.describe(worker.process.pid, exit_code)
        failure = self._failure(group, worker, exit_code, describe_exit(exit_code) + remark, log=str(worker.log or ""))
        describe = partial(with_description, failure, worker, remark)
        described = within(_DESCRIPTION_DELAY, describe, late=self._session.deliver)
        self._report_failure(described or failure)
        self._session.apply(self._session.state_machine.worker_failed(described or failure))
        if described is not None:
            self._failed(described)

    def _failure(
        self,
        group: WorkerGroup,
        worker: Worker,
        exit_code: int,
        message: str,
        *,
        log: str = "",
        collective: bool = False,
    ) -> Failure:
        failure = failure_of(worker, group.part.round, exit_code, self._control_page.marks(worker.local_rank))
        node, happened = self._launch.run.node, self._session.events.filesystem_time()
        return replace(failure, node=node, message=message, log=log, collective=collective, happened=happened)

    def _remark(self, worker: Worker) -> str:
        """Return why the agent has killed a worker; empty if it has not."""
        verdict = self._hung.pop(worker.process.pid, "")
        hung = f", because it hung: {verdict}" if verdict else ""
        return self._launch.timers.describe_expired(worker) + hung

    def failure_described(self, failure: Failure) -> None:
        """Publish the description of a failure that was published without it."""
        self._report_failure(failure)
        self._session.apply(self._session.state_machine.failure_described(failure))
        self._failed(failure)

    def _report_failure(self, failure: Failure) -> None:
        log = f"; log: {failure.log}" if failure.log else ""
        self._session.report(f"rank {failure.rank} failed: {failure.message}{log}")

    def _all_ended(self, group: WorkerGroup) -> None:
        acknowledged = self._control_page.acknowledged(group.part.round)
        if self._pending.of_ended_worker and not acknowledged:
            return  # that failure counts soon
        server = self._store.server_pid
        self._launch.timers.end()
        group.finish(*([server] if server is not None else []))
        self._group = None
        self._pending.clear()
        self.report_progress()
        log_totals(self._session.log, self._control_page, group.part)
        if acknowledged:
            self._session.report(f"round {group.part.round}: the workers have stopped at the end of a step")
            self._after_round(group, "they were asked to stop")
            self._stopped_early = True
            self.finish_early_stop()
        else:
            self.idle.stop()
            self._session.apply(self._session.state_machine.workers_succeeded())

    def _log_started(self, group: WorkerGroup) -> None:
        if not group.spawn_requests:  # all workers run
            self._session.log(workers_started(group, self._launch))
