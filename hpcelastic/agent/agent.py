"""The agent of one node: takes part in the rendezvous and supervises the node's worker group.

The main thread waits for events only: a worker's end (pidfd), a signal, the guard, what the rendezvous thread found.
What it does about them is decided by `hpcelastic.agent.conduct`; here it is done.
"""

import contextlib
import os
import select
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hpcelastic.agent.conduct import Action, Actions, Conduct, Reserve, Say, Start, Stop
from hpcelastic.agent.environment import RunFacts
from hpcelastic.agent.failures import describe_failure
from hpcelastic.agent.guard import boottime
from hpcelastic.agent.guarded import Guard
from hpcelastic.agent.node import reserve_port
from hpcelastic.agent.settings import AgentSettings
from hpcelastic.agent.workers import Worker, WorkerGroup
from hpcelastic.errors import HpcElasticError, RendezvousTimeout, RunFailed, StoreError
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Failure, Member, Phase, State
from hpcelastic.rendezvous.rendezvous import Outcome, Rendezvous
from hpcelastic.rendezvous.thread import RendezvousThread
from hpcelastic.store import files
from hpcelastic.store.events import EventLog
from hpcelastic.store.keyvalue import remove_stores
from hpcelastic.store.locks import LockKind
from hpcelastic.store.paths import RunPaths

_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
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
    environ: Mapping[str, str]
    lock: LockKind = LockKind.NATIVE
    """What keeps contention for the register cheap on the run's filesystem."""


class Agent:
    """Runs one node's part of a run, from joining to the run's end; ``report`` is given lines for a person."""

    def __init__(self, spec: AgentSpec, report: Callable[[str], None]) -> None:
        self._spec = spec
        self._report = report
        self._conduct = Conduct(spec.member, spec.settings.rendezvous.lease, boottime)
        self._run = RunFacts(spec.paths, spec.run_id, spec.member.node, spec.settings.restarts.max)
        self._events = EventLog(spec.paths.event_log(spec.member.node), spec.member.name)
        self._inbox: deque[Outcome | HpcElasticError | int] = deque()
        self._bell, self._bell_end = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._port: socket.socket | None = None
        self._group: WorkerGroup | None = None
        self._ending: WorkerGroup | None = None
        self._version, self._reason = 0, ""
        self._joining_since: float | None = time.monotonic()
        self._trouble_since: float | None = None
        """Since when the run's directory fails or, as the fence has shown, hangs."""

        self._trouble: StoreError | None = None
        """What was last wrong with it."""

        self._exit_code: int | None = None

    def run(self) -> int:
        """Take part until the run ends or this node leaves; the exit status.

        0 once the run has succeeded, 128 + signal if a signal made this node leave. Raises RunFailed if the run
        failed or was closed, RendezvousTimeout if no round formed in time, StoreError if the run's directory could
        not be used for as long.
        """
        for directory in (self._spec.paths.events, self._spec.paths.logs):
            files.make_directory(directory)
        with contextlib.ExitStack() as stack:
            self._guard = stack.enter_context(Guard(self._spec.member.node))
            stack.enter_context(self._signals())
            self._watch(self._bell_end, self._rung)
            self._watch(self._guard, self._guarded)
            lease = self._spec.settings.rendezvous
            rendezvous = Rendezvous(self._spec.paths, self._run.node, self._spec.settings, boottime, self._spec.lock)
            self._rendezvous = RendezvousThread(rendezvous, self._spec.member, lease.poll, self._deliver)
            self._rendezvous.start()
            stack.callback(self._say_goodbye)
            stack.callback(self._end_workers, "the agent ends")
            member = self._spec.member
            self._log("agent started", address=member.address, pid=os.getpid(), workers=member.local_world_size)
            while self._exit_code is None:
                self._turn()
            return self._exit_code

    # What wakes the main thread

    def _turn(self) -> None:
        # The guard goes first: what it has killed is no failure of a worker. One event may end what the next is about.
        ready = sorted(self._selector.select(self._patience()), key=lambda event: event[0].fileobj is not self._guard)
        for key, _ in ready:
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        while self._inbox:
            if select.select([self._guard], [], [], 0)[0]:  # it may have spoken since
                self._guarded()
            message = self._inbox.popleft()
            if isinstance(message, Outcome):
                self._learned(message)
            elif isinstance(message, int):
                self._signalled(message)
            else:
                self._troubled(message)
        if self._exit_code is None and self._patience() == 0.0:
            raise self._out_of_patience()

    def _deliver(self, message: Outcome | HpcElasticError) -> None:
        """Called in the rendezvous thread; the guard hears of the lease from here, however busy the main thread is."""
        if isinstance(message, Outcome):
            self._guard.until(message.lease_from + self._spec.settings.rendezvous.lease)
        self._inbox.append(message)
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._bell.send(b"!", socket.MSG_DONTWAIT)

    def _rung(self) -> None:
        self._bell_end.recv(4096)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Catch signals for as long as the agent runs, and put the old handlers back."""
        caught = [*_STOP, signal.SIGUSR1, signal.SIGUSR2]
        caught += [signal.Signals[name] for name in self._spec.agent.workers.forward_signals]
        before = {signum: signal.signal(signum, self._caught) for signum in caught}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _caught(self, signum: int, _frame: object) -> None:
        if signum in _STOP and self._conduct.leaving and self._ending is not None:
            self._ending.send(signal.SIGKILL)  # asked twice: no more grace
        self._inbox.append(signum)
        self._ring()

    # What the agent does about it

    def _learned(self, outcome: Outcome) -> None:
        if self._trouble_since is not None:
            self._report(f"{self._spec.paths.root}: works again")
            self._joining_since = None  # nobody could join meanwhile
        self._trouble_since = self._trouble = None
        state = outcome.state
        if outcome.version != self._version:
            self._log("state", version=outcome.version, phase=state.phase.value, round=state.round, reason=state.reason)
        if outcome.reason != self._reason and not state.phase.final:
            self._report(outcome.reason)
        self._version, self._reason = outcome.version, outcome.reason
        if state.phase is not Phase.JOINING:
            self._joining_since = None
        elif self._joining_since is None:
            self._joining_since = time.monotonic()
        self._do(self._conduct.learned(state, outcome.lease_from, outcome.settled))

    def _start_workers(self, part: Assignment, lease_from: float) -> None:
        group = WorkerGroup(part, self._spec.agent, self._run, self._guard)
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
        self._group = group
        for pidfd in group.running:
            self._watch_worker(pidfd)
        pids = {worker.rank: worker.process.pid for worker in group.running.values()}
        self._log("workers started", round=part.round, world_size=part.world_size, pids=pids)

    def _worker_ended(self, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        assert self._group is not None
        group = self._group
        worker, exit_code = group.reap(pidfd)
        self._log("worker ended", round=group.part.round, rank=worker.rank, exit_code=exit_code)
        if exit_code != 0:
            self._worker_failed(group, worker, exit_code)
        elif not group.running:
            group.finish()
            self._group = None
            self._do(self._conduct.workers_succeeded())

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

    def _guarded(self) -> None:
        self._selector.unregister(self._guard)
        fenced = self._guard.heard()
        self._watch(self._guard, self._guarded)
        if not fenced:
            return
        if self._trouble_since is None:
            self._trouble_since = time.monotonic()
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
        elif signum in _STOP and not self._conduct.leaving:
            self._report(f"{name}: stopping the workers and leaving the run")
            self._do(self._conduct.leave(name))
            self._exit_code = 128 + signum

    def _troubled(self, error: HpcElasticError) -> None:
        if not isinstance(error, StoreError):
            raise error
        if self._trouble_since is None:
            self._trouble_since = time.monotonic()
        if self._trouble is None:
            patience = self._spec.settings.rendezvous.join_timeout
            self._report(f"{error}; trying again for {patience:g} s (rendezvous.join_timeout)")
            self._log("trouble", error=str(error))
        self._trouble = error
        self._do(self._conduct.troubled())

    def _end(self, state: State) -> None:
        self._log("run ended", phase=state.phase.value, reason=state.reason)
        if state.phase is not Phase.SUCCEEDED:
            raise RunFailed(f"the run has {state.phase.value}: {state.reason}", state.failures)
        self._report(f"the run has succeeded: {state.reason}")
        self._exit_code = 0

    # Its own means

    def _do(self, actions: Actions) -> None:
        """Carry out what was decided, in order."""
        answer: int | None = None
        with contextlib.suppress(StopIteration):
            while True:
                answer = self._act(actions.send(answer))

    def _act(self, action: Action) -> int | None:
        if isinstance(action, Reserve):
            return self._reserve_port()
        if isinstance(action, Say):
            self._rendezvous.say(action.member)
        elif isinstance(action, Start):
            self._start_workers(action.part, action.lease_from)
        elif isinstance(action, Stop):
            self._end_workers(action.reason)
        else:
            self._end(action.state)
        return None

    def _end_workers(self, why: str) -> None:
        """Stop the group, if one runs; on return no process of it is left that runs any more."""
        group, self._group = self._group, None
        if group is None:
            return
        for pidfd in group.running:
            self._selector.unregister(pidfd)
        self._report(f"round {group.part.round}: stopping the workers: {why}")
        self._ending = group
        held = group.stop(self._spec.agent.workers.stop_grace)
        self._ending = None
        if held:
            ranks = ", ".join(str(worker.rank) for worker in held)
            self._report(f"killed, and gone once the shared filesystem answers: rank {ranks}")
        self._log("workers stopped", round=group.part.round, reason=why)

    def _reserve_port(self) -> int:
        if self._port is not None:
            self._port.close()
        self._port, port = reserve_port()
        return port

    def _say_goodbye(self) -> None:
        self._do(self._conduct.say_goodbye())
        if not self._rendezvous.stop(_PARTING):
            self._report("could not say goodbye in the run's directory; the others will wait for the lease to run out")
        self._log("agent ended")
        self._events.close(_PARTING)
        if self._port is not None:
            self._port.close()

    def _patience(self) -> float | None:
        """Seconds until a wait gets too long; None if there is none."""
        since = self._joining_since if self._trouble_since is None else self._trouble_since
        if since is None:
            return None
        return max(0.0, since + self._spec.settings.rendezvous.join_timeout - time.monotonic())

    def _out_of_patience(self) -> HpcElasticError:
        timeout = self._spec.settings.rendezvous.join_timeout
        if self._trouble_since is not None:
            what = f"{self._spec.paths.root}: could not be used for {timeout:g} s (rendezvous.join_timeout)"
            why = self._trouble or "it did not answer"
            return StoreError(f"{what}: {why}; once that is put right, continue the run with --resume")
        return RendezvousTimeout(f"{self._reason}; no round formed in {timeout:g} s (rendezvous.join_timeout)")

    def _watch(self, source: socket.socket | Guard, react: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, react)

    def _watch_worker(self, pidfd: int) -> None:
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._worker_ended(pidfd))

    def _log(self, event: str, **fields: object) -> None:
        self._events.write(event, **fields)
