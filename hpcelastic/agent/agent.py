"""The agent of one node: takes part in the rendezvous and supervises the node's worker group.

The main thread waits for events only: a worker's end (pidfd), a signal, the guard, what the rendezvous thread found.
What it does about them is decided by `hpcelastic.agent.conduct`; here it is done.
"""

import contextlib
import os
import select
import selectors
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcelastic.agent.address import interface_of
from hpcelastic.agent.bell import Bell, heed, open_network
from hpcelastic.agent.binding import binding, ranges
from hpcelastic.agent.conduct import Action, Actions, Ask, Conduct, Reserve, Say, Start, Stop, carry_out
from hpcelastic.agent.environment import RunFacts, common_environment
from hpcelastic.agent.failures import describe_failure
from hpcelastic.agent.fitness import UNFIT
from hpcelastic.agent.guard import boottime
from hpcelastic.agent.guarded import Guard
from hpcelastic.agent.inbox import Inbox
from hpcelastic.agent.output import make_logs
from hpcelastic.agent.patience import Patience
from hpcelastic.agent.settings import AgentSettings
from hpcelastic.agent.signals import handled
from hpcelastic.agent.store_port import StoreHost, StorePort, host_environment, spawner
from hpcelastic.agent.surroundings import STOP, USER_SIGNALS, WARNINGS, Alone, Outlook, Surroundings
from hpcelastic.agent.warm import Warm, WarmSettings
from hpcelastic.agent.warned import Meaning, Warned
from hpcelastic.agent.witness import Witness
from hpcelastic.agent.workers import Means, Worker, WorkerGroup, can_be_warm, words
from hpcelastic.errors import HpcElasticError, RunFailed, StoreError
from hpcelastic.health.incidents import Trouble
from hpcelastic.network import News
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Failure, Member, Notice, Phase, State
from hpcelastic.rendezvous.rendezvous import Outcome, Rendezvous
from hpcelastic.rendezvous.thread import RendezvousThread
from hpcelastic.store import files
from hpcelastic.store.board import Board, Wish
from hpcelastic.store.events import EventLog
from hpcelastic.store.keyvalue import remove_stores
from hpcelastic.store.locks import LockKind
from hpcelastic.store.paths import RunPaths

Observe = Callable[[str, Mapping[str, object]], None]
"""Is told each event with its fields, as the event log is, in whatever thread it happens; it must return at once."""

HEED = "workers ask should_stop"
"""The event that says so, once for each round."""

_PARTING = 5.0
"""Seconds that the last word of an agent may take to reach the shared filesystem."""


@dataclass(frozen=True)
class AgentSpec:
    """What an agent is told at its start."""

    paths: RunPaths
    run_id: str
    settings: Settings
    agent: AgentSettings
    member: Member
    state: State
    """The run as the agent found it."""

    environ: Mapping[str, str]
    lock: LockKind = LockKind.NATIVE
    """What keeps contention for the register cheap on the run's filesystem."""

    processors: Sequence[Collection[int]] = ()
    """What each worker is bound to, by local rank; see `Means`."""

    surroundings: Surroundings | None = None
    """Who knows what a signal means; None if there is nobody but a person."""

    observe: Observe | None = None
    """Who is told of each event beside the event log."""


class Agent:
    """Runs one node's part of a run, from joining to the run's end; ``report`` is given lines for a person."""

    def __init__(self, spec: AgentSpec, report: Callable[[str], None]) -> None:
        self._spec = spec
        self._report = report
        enabled = spec.agent.network.doorbell
        self._network = open_network(spec.paths, spec.member, self._heard, report) if enabled else None
        self._inherited = (self._network.presence.fileno(),) if self._network else ()
        """What every process of this node holds open, so that others can tell when none is left."""

        self._member = replace(spec.member, bell=self._network.port if self._network else 0)
        self._conduct = Conduct(self._member, spec.settings.rendezvous.lease, boottime)
        self._surroundings = spec.surroundings or Alone(spec.agent.workers.stop_grace)
        self._board = Board.make(spec.member.local_world_size)
        member = spec.member
        self._run = RunFacts(
            spec.paths,
            spec.run_id,
            member.node,
            spec.settings.restarts.max,
            self._board.name,
            interface_of(member.address),
            spec.agent.workers.forward_signals,
            spec.agent.workers.virtual_local_rank,
        )
        self._events = EventLog(spec.paths.event_log(spec.member.node), spec.member.name)
        self._witness = Witness(spec.paths, spec.member, enabled=spec.agent.health.exclude)
        self._inbox: Inbox[Outcome | HpcElasticError | Meaning | Outlook | int] = Inbox()
        self._selector = selectors.DefaultSelector()
        self._store: StorePort | StoreHost | None = None
        """What this node offers the next round, or does for the one that it leads."""

        self._group: WorkerGroup | None = None
        self._ending: WorkerGroup | None = None
        self._stopped = False
        """True from when our workers have come to a step's end until our part of the round is over."""

        self._last = False
        """Whether no other node's workers of the round are left."""

        self._version, self._reason = 0, ""
        self._heed = -1
        """The last round in which workers were seen to ask whether they should stop."""

        self._patience = Patience(spec.settings.rendezvous.join_timeout)
        self._warned = Warned(self._surroundings, self._inbox.deliver, report)
        self._exit_code: int | None = None
        self._leaving_code = 0
        """The exit status once this node has left."""

    @property
    def notice(self) -> Notice | None:
        """Why this node leaves, and the seconds that are left for it by now; None if it does not leave."""
        return self._conduct.notice

    @property
    def member(self) -> Member:
        """What this node says of itself."""
        return self._conduct.member

    def run(self) -> int:
        """Take part until the run ends or this node leaves; the exit status.

        0 once the run has succeeded, 128 + signal if a signal made this node leave. Raises RunFailed if the run
        failed or was closed, RendezvousTimeout if no round formed in time, StoreError if the run's directory could
        not be used for as long.
        """
        files.make_directory(self._spec.paths.events)
        make_logs(self._spec.paths, self._spec.agent.logs)
        with contextlib.ExitStack() as stack:
            stack.callback(self._board.close)
            if self._network:
                stack.callback(self._network.close)
            self._guard = stack.enter_context(Guard(self._spec.member.node, self._inherited))
            stack.enter_context(self._signals())
            self._watch(self._inbox, self._inbox.heard)
            self._watch(self._guard, self._guarded)
            warm = self._warm_parent(stack)
            self._means = Means(self._guard, warm, self._inherited, self._board, self._spec.processors)
            bell = Bell(self._network) if self._network else None
            rendezvous = Rendezvous(
                self._spec.paths, self._run.node, self._spec.settings, boottime, self._spec.lock, bell
            )
            poll = self._spec.settings.rendezvous.poll
            self._rendezvous = RendezvousThread(rendezvous, self._member, poll, self._inbox.deliver, self._renewed)
            self._do(self._conduct.found(self._spec.state))
            self._rendezvous.start()
            if self._network:
                self._network.start()
            self._surroundings.start(self._inbox.deliver)
            stack.callback(self._surroundings.stop)
            stack.callback(self._say_goodbye)
            stack.callback(self._end_workers, "the agent ends")
            member = self._member
            self._log("agent started", address=member.address, pid=os.getpid(), workers=member.local_world_size)
            while self._exit_code is None:
                self._turn()
            return self._exit_code

    # What wakes the main thread

    def _turn(self) -> None:
        # The guard goes first: what it has killed is no failure of a worker. One event may end what the next is about.
        ready = sorted(self._selector.select(self._pause()), key=lambda event: event[0].fileobj is not self._guard)
        for key, _ in ready:
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        while self._inbox:
            if select.select([self._guard], [], [], 0)[0]:  # it may have spoken since
                self._guarded()
            message = self._inbox.take()
            if isinstance(message, Outcome):
                self._learned(message)
            elif isinstance(message, int):
                self._signalled(message)
            elif isinstance(message, Meaning):
                if (notice := self._warned.understood(message)) is not None:
                    self._leave(notice)
            elif isinstance(message, Outlook):
                self._expected(message)
            else:
                self._troubled(message)
        if self._conduct.overdue == 0.0:
            self._do(self._conduct.lose_patience())
        if self._conduct.leaving and self._conduct.part is None and self._exit_code is None:
            self._exit_code = self._leaving_code
        if self._exit_code is None and self._waits() == 0.0:
            if self._patience.troubled or not self._surroundings.others_come():
                raise self._patience.lost(self._spec.paths.root, self._reason)
            self._patience.begin_again()

    def _renewed(self, lease_from: float) -> None:
        """Called in the rendezvous thread; the guard hears of the lease from here, however busy the main thread is."""
        self._guard.until(lease_from + self._spec.settings.rendezvous.lease)
        self._note_heed()

    def _note_heed(self) -> None:
        """Note, once a round, that its workers would come to a step's end if they were asked to."""
        group = self._group
        if group is not None and group.part.round > self._heed and self._board.heeded(group.part.round):
            self._heed = group.part.round
            self._log(HEED, round=self._heed)

    def _heard(self, news: News) -> None:
        """Called in the network's thread."""
        self._rendezvous.hear(heed(news))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Catch signals for as long as the agent runs, and put the old handlers back.

        What would stop it is not caught if whoever started it had it ignored, as nohup does.
        """
        caught = [*(s for s in STOP if signal.getsignal(s) != signal.SIG_IGN), *USER_SIGNALS]
        caught += [signal.Signals[name] for name in self._spec.agent.workers.forward_signals]
        with handled(dict.fromkeys(caught, self._caught)):
            yield

    def _caught(self, signum: int, _frame: object) -> None:
        if signum in STOP and self._conduct.leaving and not self._surroundings.repeats and self._ending is not None:
            self._ending.send(signal.SIGKILL)  # asked twice: no more grace
        self._inbox.deliver(signum)

    # What the agent does about it

    def _learned(self, outcome: Outcome) -> None:
        if self._patience.troubled:
            self._report(f"{self._spec.paths.root}: works again")
        self._patience.learned(outcome)
        state = outcome.state
        if outcome.version != self._version:
            stands = {"version": outcome.version, "phase": state.phase.value, "round": state.round}
            self._log("state", **stands, restarts=state.restarts, reason=state.reason)
        if outcome.reason != self._reason and not state.phase.final:
            self._report(outcome.reason)
        self._version, self._reason = outcome.version, outcome.reason
        self._witness.learned(state)
        self._surroundings.learned(state, outcome.first)
        self._conduct.prepared = self._means.warm is None or not self._means.warm.loading
        told = self._warned.told_by_others(state)
        if told is not None:
            self._leave(told)
        self._last = outcome.last
        stays = not self._conduct.leaving
        self._do(self._conduct.learned(state, outcome.lease_from, outcome.settled))
        if stays and self.notice is not None:
            self._tell_leaving(self.notice)
        if self._stopped:
            self._part_over()

    def _start_workers(self, part: Assignment, lease_from: float) -> None:
        group = WorkerGroup(part, self._spec.agent, self._run, self._means)
        last = part.first_rank + part.local_world_size - 1
        ranks = f"rank {last}" if last == part.first_rank else f"ranks {part.first_rank}..{last}"
        self._report(
            f"round {part.round}: {ranks} of {part.world_size}, store at {part.master_addr}:{part.master_port}"
        )
        if part.group_rank == 0:
            # In a thread that nobody waits for: it may be many files, on a filesystem that may hang.
            threading.Thread(
                target=remove_stores, args=(self._spec.paths, part.round - 2), name="sweep", daemon=True
            ).start()
        try:
            group.start(self._spec.environ, lease_from)
        except OSError as error:
            raise HpcElasticError(f"{self._spec.member.name}: cannot start the workers: {error}") from error
        self._offer_store(part, lease_from)
        self._group = group
        for pidfd in group.running:
            self._watch_worker(pidfd)
        for line in group.births:
            self._watch_birth(line)
        self._born(group)

    def _worker_born(self, line: int) -> None:
        self._selector.unregister(line)
        assert self._group is not None
        try:
            worker = self._group.born(line)
        except OSError as error:
            raise HpcElasticError(f"{self._spec.member.name}: cannot start a worker: {error}") from error
        self._watch_worker(worker.pidfd)
        self._born(self._group)

    def _born(self, group: WorkerGroup) -> None:
        if not group.births:
            part, given = group.part, binding(self._spec.environ)
            if any(self._spec.processors):
                given["bound"] = ";".join(ranges(cpus) for cpus in self._spec.processors)
            of_group = {"group_rank": part.group_rank, "group_world_size": part.group_world_size}
            of_role = {"role_rank": part.role_first_rank, "role_world_size": part.role_world_size}
            told = {"round": part.round, "world_size": part.world_size, **of_group, **of_role}
            self._log("workers started", **told, pids=group.pids, **given)

    def _offer_store(self, part: Assignment, lease_from: float) -> None:
        """Let the first client wake us if the store is ours to serve, else give the port back."""
        store = self._store
        if part.group_rank == 0 and isinstance(store, StorePort):
            self._watch(store, lambda: self._serve_store(store, part.round, lease_from))
        else:
            self._close_store()

    def _serve_store(self, port: StorePort, round: int, lease_from: float) -> None:
        self._selector.unregister(port)
        agent = self._spec.agent
        environ = host_environment(common_environment(self._spec.environ, 1, self._run, agent.environment))
        try:
            host = self._store = port.serve(spawner(self._means, lease_from, environ))
        except OSError as error:
            raise HpcElasticError(f"{self._member.name}: cannot serve the workers' store: {error}") from error
        self._log("store served", round=round, port=port.port, pid=host.pid)
        self._watch(host, lambda: self._store_lost(host, round))

    def _store_lost(self, host: StoreHost, round: int) -> None:
        """The store host has died, which is no failure of a worker's; but one that could not start never will."""
        self._selector.unregister(host)
        self._store = None
        self._guard.remove(host.pid)
        exit_code = host.reap()
        self._log("store lost", round=round, exit_code=exit_code)
        if exit_code > 0:
            raise HpcElasticError(f"{self._member.name}: the store of round {round} ended with status {exit_code}")
        self._report(f"the process that served the store of round {round} was killed; a new round is needed")
        self._do(self._conduct.fenced("the store was lost"))

    def _worker_ended(self, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        assert self._group is not None
        group = self._group
        worker, exit_code = group.reap(pidfd)
        self._log("worker ended", round=group.part.round, rank=worker.rank, exit_code=exit_code)
        if exit_code != 0:
            self._worker_failed(group, worker, exit_code)
        elif group.over:
            self._workers_finished(group)

    def _workers_finished(self, group: WorkerGroup) -> None:
        group.finish(*([self._store.pid] if isinstance(self._store, StoreHost) else []))
        self._group = None
        self._note_progress()
        if self._board.told(group.part.round):
            self._report(f"round {group.part.round}: the workers have come to a step's end and stopped")
            self._log("workers stopped", round=group.part.round, reason="they were asked to")
            self._stopped = True
            self._part_over()
        else:
            self._do(self._conduct.workers_succeeded())

    def _part_over(self) -> None:
        """Our workers have come to a step's end; those of others may need the store that we serve to come to theirs."""
        if self._last or not isinstance(self._store, StoreHost):
            self._stopped = False
            self._close_store()
            self._do(self._conduct.workers_succeeded(early=True))

    def _note_progress(self) -> None:
        reported = self._board.progress()
        if reported is not None:
            self._conduct.progressed(reported)

    def _worker_failed(self, group: WorkerGroup, worker: Worker, exit_code: int) -> None:
        message, traceback, when = describe_failure(exit_code, worker.error_file, worker.log)
        failure = Failure(
            round=group.part.round,
            node=self._run.node,
            rank=worker.rank,
            local_rank=worker.local_rank,
            exit_code=exit_code,
            message=message,
            traceback=traceback,
            log=str(worker.log or ""),
            timestamp=when,
        )
        self._report(f"rank {worker.rank} failed: {message}" + (f"; log: {worker.log}" if worker.log else ""))
        self._do(self._conduct.worker_failed(failure))
        cause = self._witness.failed(failure)
        if cause is Trouble.HARDWARE and self._witness.others_suffice(self._spec.settings.nodes.min):
            self._report("that is this machine's fault: this node leaves, the others go on")
            self._leaving_code = UNFIT
            self._do(self._conduct.leave(Notice(f"broken: {failure.message}", 0.0)))

    def _guarded(self) -> None:
        self._selector.unregister(self._guard)
        fenced = self._guard.heard()
        self._watch(self._guard, self._guarded)
        if not fenced:
            return
        self._patience.doubt()
        if self._group is not None:
            round = self._group.part.round
            where = self._spec.paths.root
            what = f"the lease ran out: the workers of round {round} were killed"
            self._report(f"{what}; is the shared filesystem that holds {where} slow or stuck?")
            self._log("fenced", round=round)
        self._do(self._conduct.fenced())

    def _signalled(self, signum: int) -> None:
        name = signal.Signals(signum).name
        self._log("signal", signal=name)
        if name in self._spec.agent.workers.forward_signals:
            if self._group is not None:
                self._group.send(signum)
        elif signum in STOP and self._conduct.leaving and not self._surroundings.repeats:
            if self._conduct.overdue is not None:  # asked twice: no more grace
                self._do(self._conduct.lose_patience())
        elif signum in WARNINGS and not self._conduct.leaving:
            self._warned.came(signum)

    def _expected(self, outlook: Outlook) -> None:
        """The surroundings know who may still come. Where nobody does, the job may do better to start anew."""
        coming, wait = outlook.coming, self._spec.settings.rendezvous.last_call
        self._rendezvous.hear(lambda rendezvous: rendezvous.expect(coming))
        hopeless = outlook.coming + outlook.pending == 0 and self._conduct.member.round > 0
        short = self._patience.short_for
        if hopeless and short is not None and short >= wait:
            notice = self._surroundings.without_enough()
            if notice is not None:
                self._leave(notice)

    def _leave(self, notice: Notice) -> None:
        signum, self._warned.signum = self._warned.signum, None
        if signum in STOP:
            self._leaving_code = 128 + signum
        if not self._conduct.leaving:
            self._tell_leaving(notice)
            self._do(self._conduct.leave(notice))

    def _tell_leaving(self, notice: Notice) -> None:
        self._report(f"leaving the run within {notice.seconds:.0f} s: {notice.reason}")
        self._log("leaving", reason=notice.reason, seconds=notice.seconds, again=notice.again)

    def _troubled(self, error: HpcElasticError) -> None:
        if not isinstance(error, StoreError):
            raise error
        if self._patience.failed(error):
            timeout = self._spec.settings.rendezvous.join_timeout
            self._report(f"{error}; trying again for {timeout:g} s (rendezvous.join_timeout)")
            self._log("trouble", error=str(error))
        self._do(self._conduct.troubled())

    def _end(self, state: State) -> None:
        self._log("run ended", phase=state.phase.value, reason=state.reason)
        if state.phase is not Phase.SUCCEEDED:
            raise RunFailed(f"the run has {state.phase.value}: {state.reason}", state.failures)
        self._report(f"the run has succeeded: {state.reason}")
        self._exit_code = 0

    # Its own means

    def _warm_parent(self, stack: contextlib.ExitStack) -> Warm | None:
        """The process that is forked into the workers, unless there is nothing to preload."""
        agent = self._spec.agent
        if not agent.workers.preload or not can_be_warm(agent.entrypoint):
            return None
        environ = common_environment(
            self._spec.environ, self._spec.member.local_world_size, self._run, agent.environment
        )
        settings = WarmSettings(agent.workers.preload, words(agent.entrypoint), environ, self._inherited)
        warm = Warm(settings, self._guard, self._report)
        self._watch_warm(stack.enter_context(warm))
        return warm

    def _watch_warm(self, warm: Warm) -> None:
        if warm.pid is not None:
            self._watch(warm, lambda: self._warm_said(warm))

    def _warm_said(self, warm: Warm) -> None:
        self._selector.unregister(warm)
        warm.heard()
        self._watch_warm(warm)
        if not warm.loading:
            self._rendezvous.hear(Rendezvous.look_again)  # a newcomer asks for its place now

    def _do(self, actions: Actions) -> None:
        carry_out(actions, self._act)

    def _act(self, action: Action) -> int | None:
        if isinstance(action, Reserve):
            return self._reserve_port()
        if isinstance(action, Say):
            self._rendezvous.say(action.member)
        elif isinstance(action, Start):
            self._start_workers(action.part, action.lease_from)
        elif isinstance(action, Stop):
            self._end_workers(action.reason)
        elif isinstance(action, Ask):
            return int(self._ask_workers(action))
        else:
            self._end(action.state)
        return None

    def _ask_workers(self, ask: Ask) -> bool:
        """Ask them to come to a step's end; whether they heed that."""
        group = self._group
        if group is None or not self._board.heeded(group.part.round):
            return False
        self._board.ask(Wish(group.part.round, boottime() + ask.seconds, ask.reason))
        self._report(f"round {group.part.round}: asking the workers to stop within {ask.seconds:.0f} s: {ask.reason}")
        self._log("workers asked to stop", round=group.part.round, seconds=ask.seconds, reason=ask.reason)
        return True

    def _end_workers(self, why: str) -> None:
        """Stop the group, if one runs, and the store; on return no process of them is left that runs any more."""
        group, self._group = self._group, None
        self._stopped = False
        if group is None:
            self._close_store()
            return
        for fd in (*group.running, *group.births):
            self._selector.unregister(fd)
        self._report(f"round {group.part.round}: stopping the workers: {why}")
        self._ending = group
        self._note_progress()
        held = group.stop(self._spec.agent.workers.stop_grace)
        self._ending = None
        self._close_store()  # last, for workers may need it to end well
        if held:
            ranks = ", ".join(str(worker.rank) for worker in held)
            self._report(f"killed, and gone once the shared filesystem answers: rank {ranks}")
        self._log("workers stopped", round=group.part.round, reason=why)

    def _reserve_port(self) -> int:
        self._close_store()
        try:
            self._store = StorePort.open()
        except OSError as error:
            raise HpcElasticError(f"{self._member.name}: no port for the workers' store: {error}") from error
        if self._means.warm is not None:
            self._means.warm.park(self._member.local_world_size + 1)  # one may become the host of the store
        return self._store.port

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is None:
            return
        with contextlib.suppress(KeyError):  # watched only where it is served
            self._selector.unregister(store)
        store.close()
        if isinstance(store, StoreHost):
            self._guard.remove(store.pid)

    def _say_goodbye(self) -> None:
        self._do(self._conduct.say_goodbye())
        if not self._rendezvous.stop(_PARTING):
            self._report("could not say goodbye in the run's directory; the others will wait for the lease to run out")
        self._log("agent ended")
        self._events.close(_PARTING)
        self._witness.close(_PARTING)

    def _pause(self) -> float | None:
        """Seconds until something is due, whatever happens; None if nothing is."""
        due = [seconds for seconds in (self._waits(), self._conduct.overdue) if seconds is not None]
        return min(due, default=None)

    def _waits(self) -> float | None:
        """Seconds until a wait gets too long; None if there is none: workers may still come to a step's end."""
        return self._patience.left(self._conduct.leaving or self._conduct.part is not None)

    def _watch(self, source: Inbox[Any] | Guard | Warm | StorePort | StoreHost, react: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, react)

    def _watch_birth(self, line: int) -> None:
        self._selector.register(line, selectors.EVENT_READ, lambda: self._worker_born(line))

    def _watch_worker(self, pidfd: int) -> None:
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._worker_ended(pidfd))

    def _log(self, event: str, **fields: object) -> None:
        self._events.write(event, **fields)
        if self._spec.observe is not None:
            self._spec.observe(event, fields)
