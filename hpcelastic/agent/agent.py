"""The agent of one node: takes part in a run and supervises the workers of its node.

The main thread waits for events: a worker's end (pidfd), a signal, a message of the guard, an observation of the
rendezvous thread. The node state machine (`hpcelastic.protocol.node`) decides what follows. The session executes what
concerns the run, and the supervisor what concerns the workers.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import TypeAlias

from hpcelastic.agent.address import interface_of
from hpcelastic.agent.admission import EXIT_UNFIT
from hpcelastic.agent.agent_spec import AgentSpec
from hpcelastic.agent.batch_system import (
    STOP_SIGNALS,
    USER_SIGNALS,
    WARNING_SIGNALS,
    JobNews,
    NoBatchSystem,
    PendingCapacity,
)
from hpcelastic.agent.commands import can_be_forked, worker_arguments
from hpcelastic.agent.environment import RunFacts, common_environment
from hpcelastic.agent.event_loop import EventLoop
from hpcelastic.agent.faulty_node import FaultyNode
from hpcelastic.agent.file_timers import FileTimers
from hpcelastic.agent.fork_server import ForkServer, ForkServerSettings
from hpcelastic.agent.group_requests import GroupRequests
from hpcelastic.agent.guard_main import boottime
from hpcelastic.agent.hangs import HangExaminer
from hpcelastic.agent.hardware_watch import HardwareWatch, sources_of
from hpcelastic.agent.inbox import Inbox
from hpcelastic.agent.incident_recorder import IncidentRecorder
from hpcelastic.agent.launch import Launch
from hpcelastic.agent.output import make_logs
from hpcelastic.agent.round_store import RoundStore
from hpcelastic.agent.session import DEPARTURE_TIMEOUT, Session
from hpcelastic.agent.signal_resolution import SignalResolution, SignalResolver
from hpcelastic.agent.signals import signal_handlers
from hpcelastic.agent.snapshots import snapshots_of
from hpcelastic.agent.stacks import StackCollector, StackRecorder
from hpcelastic.agent.stragglers import StragglerWatch
from hpcelastic.agent.supervisor import Supervisor
from hpcelastic.agent.timer_pipe import open_pipe
from hpcelastic.agent.training_totals import TotalsWriter
from hpcelastic.agent.watchdog import Watchdog
from hpcelastic.agent.worker import WorkerResources
from hpcelastic.agent.worker_channels import WorkerChannels
from hpcelastic.errors import CrashLoop, HpcElasticError, RunFailed
from hpcelastic.health.hardware import HardwareFinding
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.readiness import readable
from hpcelastic.protocol.budget import has_crash_loop
from hpcelastic.protocol.events import AgentRestarted, JobEligible, Leaving, RunEnded, SignalReceived
from hpcelastic.protocol.node import (
    Action,
    Finish,
    NodeStateMachine,
    ParkWorkers,
    RequestStop,
    ReservePort,
    StartWorkers,
    StopWorkers,
)
from hpcelastic.protocol.state import Failure, Member, Notice, Phase, State
from hpcelastic.rendezvous.observation import Observation
from hpcelastic.rendezvous.rendezvous import Rendezvous

Message: TypeAlias = Observation | HpcElasticError | SignalResolution | JobNews | Failure | HardwareFinding | int
"""A message from another thread to the main thread. A number is the number of a signal."""


class Agent:
    """Runs one node's part of a run, from joining to the run's end. ``report`` is called with lines for people."""

    def __init__(self, spec: AgentSpec, report: Callable[[str], None]) -> None:
        self._spec, self._report = spec, report
        self._inbox: Inbox[Message] = Inbox()
        self._loop = EventLoop()
        self._session = Session(spec.session, self._inbox, self._perform, report, self._renewed)
        self._batch_system = spec.batch_system or NoBatchSystem(spec.agent.workers.stop_grace)
        self._incident_recorder = IncidentRecorder(spec.paths, spec.backend, spec.member, spec.agent.health)
        self._faulty = FaultyNode(self._session, self._incident_recorder, report)
        forwarded = spec.agent.workers.forward_signals
        self._stop_signals = [signum for signum in STOP_SIGNALS if signum.name not in forwarded]
        self._signal_resolver = SignalResolver(self._batch_system, self._inbox.deliver, report)
        self._supervisor: Supervisor | None = None
        self._exit_code: int | None = None
        self._leaving_code = 0
        """The exit status once this node has left."""

    @property
    def notice(self) -> Notice | None:
        """Why this node leaves, and the seconds that remain; None if it does not leave."""
        return self._machine.notice_at(boottime())

    @property
    def member(self) -> Member:
        """The newest content of this node's lease."""
        return self._session.member

    @property
    def _machine(self) -> NodeStateMachine:
        return self._session.state_machine

    def run(self) -> int:
        """Take part until the run ends or this node leaves, and return the exit status.

        It is 0 once the run has succeeded, and 128 + signal if a signal made this node leave. Raises RunFailed if the
        run failed or was closed, RendezvousTimeout if no round formed in time, and StoreError if the run's directory
        could not be used for that time.
        """
        make_logs(self._spec.paths, self._spec.agent.logs)
        with contextlib.ExitStack() as stack:
            control_page = stack.enter_context(contextlib.closing(ControlPage.make(self._spec.member.local_world_size)))
            stack.enter_context(self._session)
            stack.enter_context(self._signals())
            self._loop.watch(self._inbox, self._inbox.clear_wakeups)
            self._watch_guard()
            self._supervisor = self._make_supervisor(stack, control_page)
            self._session.start(self._spec.member.local_world_size)
            self._batch_system.start(self._inbox.deliver)
            seconds, environ = self._spec.agent.health.watch_interval, self._spec.environ
            hardware = HardwareWatch(sources_of(environ), seconds, self._inbox.deliver, self._report)
            stack.callback(hardware.close)
            stack.callback(self._batch_system.stop)
            stack.callback(self._finish_work)
            stack.callback(self._depart, self._supervisor)
            if self._spec.restart:
                self._report(f"the agent on this node has died ({self._spec.died}) and was started again")
                self._session.log(AgentRestarted(number=self._spec.restart, reason=self._spec.died))
            while self._exit_code is None:
                self._turn(self._supervisor)
            return self._exit_code

    def _make_supervisor(self, stack: contextlib.ExitStack, control_page: ControlPage) -> Supervisor:
        spec, agent, session = self._spec, self._spec.agent, self._session
        self._timers = self._make_timers(stack)
        channels = WorkerChannels(self._loop)
        stack.callback(channels.close)
        collector, self._watchdog = StackCollector(control_page.seats), Watchdog(agent.hangs, control_page)
        totals, requests = TotalsWriter(session, control_page), GroupRequests(session)
        self._watches = StragglerWatch(session, agent.stragglers, self._watchdog), totals, requests
        for part in (totals, requests, collector, self._watchdog):
            stack.callback(part.close)
        self._stacks = StackRecorder(
            spec.paths, spec.member.node, control_page, collector, session.log, spec.found.state.stacks
        )
        self._snapshots = snapshots_of(session, self._loop, control_page, spec.agent.network, self._report)
        run = RunFacts(
            spec.paths,
            spec.run_id,
            spec.member.node,
            spec.settings.restarts.max,
            control_page.name,
            interface_of(spec.member.address),
            agent.workers.forward_signals,
            agent.workers.virtual_local_rank,
            self._timers.path,
            channels.name,
            self._snapshots.name,
            collector.variables,
            self._watchdog.variables,
        )
        fork_server = self._fork_server = self._start_fork_server(stack, run)
        resources = WorkerResources(session.guard, fork_server, session.inherited, spec.processors, channels)
        environ = common_environment(spec.environ, 1, run, spec.agent.environment)
        self._store = RoundStore(session, self._loop, resources, spec.agent.store_port, environ)
        launch = Launch(spec.agent, run, resources, control_page, self._timers, spec.environ)
        supervisor = Supervisor(session, self._loop, launch, self._store, self._faulty.worker_failed)
        self._hangs = HangExaminer(session, agent.hangs, collector, self._watchdog, control_page, supervisor.end_hung)
        supervisor.interrupted = self._hangs.collective_failed
        return supervisor

    def _make_timers(self, stack: contextlib.ExitStack) -> FileTimers:
        workers = self._spec.agent.workers
        pipe = open_pipe(self._spec.environ, wanted=workers.timers, node=self.member.name, report=self._report)
        timers = FileTimers(pipe, workers.stop_grace, self._session.log, self._report)
        stack.callback(timers.close)
        if pipe is not None:
            self._loop.watch(pipe, timers.receive)
        return timers

    # Events

    def _turn(self, supervisor: Supervisor) -> None:
        """Wait for events and handle them."""
        session = self._session
        # The guard goes first: a worker that it has killed has not failed.
        self._loop.turn(self._seconds_to_next(), first=session.guard)
        while self._inbox:
            if readable([session.guard], 0):  # it may have reported since
                self._guard_reported()
            self._handle(self._inbox.take(), supervisor)
        self._timers.expire()
        if self._machine.seconds_to_stop(boottime()) == 0.0:
            session.apply(self._machine.stop_timed_out())
        supervisor.expire(boottime())
        workers = supervisor.workers()
        self._hangs.check(workers)
        for watch in self._watches:
            watch.check(workers)
        if self._machine.left and self._exit_code is None:
            self._exit_code = EXIT_UNFIT if self._faulty.leaves else self._leaving_code
        if self._exit_code is None and session.seconds_left() == 0.0:
            if session.timeouts.failing or not self._batch_system.expects_nodes():
                raise session.timed_out()
            session.timeouts.restart()

    def _handle(self, message: Message, supervisor: Supervisor) -> None:
        if isinstance(message, Observation):
            self._observed(message, supervisor)
        elif isinstance(message, int):
            self._signalled(message, supervisor)
        elif isinstance(message, SignalResolution):
            if (notice := self._signal_resolver.resolved(message)) is not None:
                self._leave(notice)
        elif isinstance(message, PendingCapacity):
            self._capacity_changed(message)
        elif isinstance(message, JobEligible):
            self._session.log(message)
        elif isinstance(message, Failure):
            supervisor.failure_described(message)
        elif isinstance(message, HardwareFinding):
            self._faulty.found(message, supervisor.polls())
        else:
            self._session.store_failed(message)

    def _observed(self, observation: Observation, supervisor: Supervisor) -> None:
        self._session.record(observation)
        state = observation.state
        self._snapshots.observe(state)
        self._incident_recorder.observe(state)
        self._stacks.observe(state, supervisor.workers)
        self._batch_system.observe(state, observation.first)
        prepared = self._fork_server is None or not self._fork_server.loading
        self._session.state_machine = self._machine.with_prepared(prepared)
        supervisor.idle.observe(observation)
        if (notice := self._signal_resolver.resolved_by_others(state)) is not None:
            self._leave(notice)
        supervisor.others_left = not observation.last
        stays = not self._machine.leaving
        self._session.follow(observation, supervisor.polls)
        if stays and self.notice is not None:
            self._announce_leaving(self.notice)
        supervisor.finish_early_stop()
        self._hangs.observe(state, supervisor.workers)
        for watch in self._watches:
            watch.observe(state)

    def _signalled(self, signum: int, supervisor: Supervisor) -> None:
        name = signal.Signals(signum).name
        self._session.log(SignalReceived(signal=name))
        if name in self._spec.agent.workers.forward_signals:
            supervisor.signal(signum)
        elif signum in STOP_SIGNALS and self._machine.leaving and not self._batch_system.repeats_signals:
            if self._machine.stop_deadline is not None:  # requested twice: no more grace
                self._session.apply(self._machine.stop_timed_out())
        elif signum in WARNING_SIGNALS and not self._machine.leaving:
            self._signal_resolver.resolve(signum)

    def _capacity_changed(self, capacity: PendingCapacity) -> None:
        """The batch system knows how many nodes may still come. If none do, the job may better start anew."""
        self._session.call_rendezvous(lambda rendezvous: rendezvous.expect(capacity.expected))
        none_come = capacity.expected + capacity.pending == 0 and self.member.round > 0
        shortage = self._session.timeouts.shortage_duration
        lasts = shortage is not None and shortage >= self._spec.settings.rendezvous.last_call
        if none_come and lasts and (notice := self._batch_system.shortage_notice()) is not None:
            self._leave(notice)

    def _guard_reported(self) -> None:
        self._loop.unwatch(self._session.guard)
        try:
            self._session.guard_reported()
        finally:
            self._watch_guard()  # the guard may have been replaced

    def _watch_guard(self) -> None:
        self._loop.watch(self._session.guard, self._guard_reported)

    def _fork_server_reported(self, fork_server: ForkServer) -> None:
        self._loop.unwatch(fork_server)
        fork_server.handle_message()
        self._watch_fork_server(fork_server)
        if not fork_server.loading:
            self._session.call_rendezvous(Rendezvous.poll_again)  # a newcomer asks for its place now

    # Actions

    def _perform(self, action: Action) -> None:
        supervisor = self._supervisor
        assert supervisor is not None
        if isinstance(action, ReservePort):
            self._reserve_port()
        elif isinstance(action, StartWorkers):
            supervisor.start(action.part, action.lease_from)
        elif isinstance(action, ParkWorkers):
            supervisor.park(action.reason)
        elif isinstance(action, StopWorkers):
            supervisor.stop(action.reason)
        elif isinstance(action, RequestStop):
            supervisor.request_stop(action)
        elif isinstance(action, Finish):
            self._finish(action.state)

    def _reserve_port(self) -> None:
        self._session.state_machine = self._machine.with_port(self._store.reserve())
        if self._fork_server is not None:
            idle = 0 if self._supervisor is None else self._supervisor.idle.count
            self._fork_server.prefork(self._spec.member.local_world_size - idle + 1)  # one may serve the store

    def _finish(self, state: State) -> None:
        self._session.log(RunEnded(phase=state.phase, reason=state.reason))
        if state.phase is not Phase.SUCCEEDED:
            error = CrashLoop if has_crash_loop(state) else RunFailed
            raise error(f"the run has {state.phase.value}: {state.reason}", state.failures)
        self._report(f"the run has succeeded: {state.reason}")
        self._exit_code = 0

    def _leave(self, notice: Notice) -> None:
        signum, self._signal_resolver.signum = self._signal_resolver.signum, None
        if signum in STOP_SIGNALS:
            self._leaving_code = 128 + signum
        if not self._machine.leaving:
            self._announce_leaving(notice)
            self._session.leave(notice, self._supervisor is not None and self._supervisor.polls())

    def _announce_leaving(self, notice: Notice) -> None:
        self._report(f"leaving the run within {notice.seconds:.0f} s: {notice.reason}")
        self._session.log(Leaving(reason=notice.reason, seconds=notice.seconds, requeue=notice.requeue))

    def _depart(self, supervisor: Supervisor) -> None:
        supervisor.stop("the agent ends")
        self._session.depart()

    def _finish_work(self) -> None:  # also if the workers could not be stopped
        self._snapshots.publish_if_lost(self.member)
        self._snapshots.finish(lambda: any(message in self._stop_signals for message in self._inbox.waiting()))
        self._session.end_log()
        self._incident_recorder.close(DEPARTURE_TIMEOUT)

    # Signals and processes

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Catch signals while the agent runs, and restore the previous handlers.

        A signal that would stop the agent is not caught if it was ignored when the agent started, as nohup does.
        """
        caught = [*(s for s in STOP_SIGNALS if signal.getsignal(s) != signal.SIG_IGN), *USER_SIGNALS]
        caught += [signal.Signals[name] for name in self._spec.agent.workers.forward_signals]
        with signal_handlers(dict.fromkeys(caught, self._caught)):
            before = signal.pthread_sigmask(signal.SIG_UNBLOCK, caught)  # see slurm/restart.py
            try:
                yield
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _caught(self, signum: int, _frame: object) -> None:
        repeated = signum in self._stop_signals and self._machine.leaving and not self._batch_system.repeats_signals
        if repeated and self._supervisor is not None:
            self._supervisor.kill_stopping(signal.SIGKILL)  # requested twice: no more grace
        self._inbox.deliver(signum)

    def _start_fork_server(self, stack: contextlib.ExitStack, run: RunFacts) -> ForkServer | None:
        """Start the process that is forked into the workers, unless there is nothing to preload."""
        agent = self._spec.agent
        if not agent.workers.preload or not can_be_forked(agent.entrypoint):
            return None
        environ = common_environment(self._spec.environ, self._spec.member.local_world_size, run, agent.environment)
        settings = ForkServerSettings(
            agent.workers.preload,
            worker_arguments(agent.entrypoint),
            environ,
            self._session.inherited,
            # With GPUs of their own, workers differ in a variable that packages read when they are imported.
            agent.workers.learn_imports and not agent.workers.virtual_local_rank,
        )
        fork_server = stack.enter_context(ForkServer(settings, self._session.guard, self._report))
        self._watch_fork_server(fork_server)
        return fork_server

    def _watch_fork_server(self, fork_server: ForkServer) -> None:
        if fork_server.pid is not None:
            self._loop.watch(fork_server, lambda: self._fork_server_reported(fork_server))

    def _renewed(self) -> None:
        """The lease was renewed. Called in the rendezvous thread."""
        if self._supervisor is not None:
            self._supervisor.log_polling()

    def _seconds_to_next(self) -> float | None:
        """Return the seconds until something is due without an event; None if nothing is."""
        session, timers, now = self._session, self._timers, boottime()
        due = [session.seconds_left(), self._machine.seconds_to_stop(now), timers.seconds_left()]
        due += [self._hangs.seconds_left(), *(watch.seconds_left() for watch in self._watches)]
        due += [] if self._supervisor is None else [self._supervisor.seconds_left(now)]
        return min((seconds for seconds in due if seconds is not None), default=None)
