"""The participation of a node whose agent is an external one, such as torchrun's, that supervises its workers itself.

Such an agent asks for a round when no worker of its own is left, receives its part, and asks from time to time whether
the round continues. If the agent fails or hangs, the guard kills its workers before the other nodes continue without
them. The guard finds the workers by an environment variable, the mark. Workers inherit the mark from this process,
which has it in its environment from the time when the agent receives its part until it first asks whether the round
continues. Workers that are forked have no mark, and report themselves; see `hpcelastic.pytorch.forks`.
"""

import atexit
import threading
from dataclasses import dataclass

from hpcelastic.agent.address import interface_of
from hpcelastic.agent.guard_main import MARKER, kill_marked_processes
from hpcelastic.agent.inbox import Inbox
from hpcelastic.agent.session import DEPARTURE_TIMEOUT, Session, SessionSpec
from hpcelastic.agent.store_server import StoreListener
from hpcelastic.backends.backend import Backend
from hpcelastic.entry import EnteredRun
from hpcelastic.errors import HpcElasticError
from hpcelastic.ipc.readiness import readable
from hpcelastic.network.settings import NetworkSettings
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.node import Action, ParkWorkers, ReservePort, StartWorkers, StopWorkers
from hpcelastic.protocol.state import Phase, State
from hpcelastic.pytorch.forks import ForkedWorkers
from hpcelastic.pytorch.marking import ExportedEnvironment
from hpcelastic.rendezvous.observation import Observation
from hpcelastic.storage.paths import RunPaths

_END_TIMEOUT = 1.0
"""Seconds for which a node that has published its success waits for the end of the run before it leaves.

Two nodes that succeed last, at the same moment, must not both miss the success of the other. A shared filesystem may
show a directory as it was a second before.
"""


@dataclass(frozen=True)
class WorkersEnded:
    """No worker of ``round`` is left on this node."""

    round: int
    succeeded: bool
    """Whether all of them have succeeded, so that the agent starts none again."""


class SessionEnded(HpcElasticError):
    """The node must not take part any more, although the run may continue."""


class ExternalAgentSession:
    """The participation of a node in the run in ``paths``. The agent calls its methods in one thread.

    A thread of its own executes what the node state machine decides. The methods wait for that thread.
    """

    def __init__(self, paths: RunPaths, here: EnteredRun, network: NetworkSettings | None = None) -> None:
        self._paths, self._report, self._node = paths, here.report, here.member.node
        self._inbox: Inbox[Observation | HpcElasticError | WorkersEnded] = Inbox()
        spec = SessionSpec(paths, here.backend, here.settings, here.member, here.found, network or NetworkSettings())
        self._session = Session(spec, self._inbox, self._perform, here.report).__enter__()
        self._port: StoreListener | None = None
        self._changed = threading.Condition()
        """Notified of each change of the attributes below."""

        self._state = here.found.state
        self._observation: Observation | None = None
        """The newest observation."""

        self._idle = True
        """Whether no worker is left, and the agent waits for a round."""

        self._part: Assignment | None = None
        """The part that the agent's workers have."""

        self._received = 0
        """The last round of which the agent has received its part."""

        self._stop_reason = ""
        """Why the workers must be stopped; empty if they must not."""

        self._error: HpcElasticError | None = None
        """The error that has ended the participation."""

        self._closing = False
        name = here.member.name
        facts = {"RUN_DIR": str(paths.root), "RUN_ID": here.found.state.run_id, "NODE": name}
        facts["INTERFACE"] = interface_of(here.member.address)
        self._facts = {MARKER: self._node, **{f"HPCELASTIC_{key}": value for key, value in facts.items()}}
        self._forks = ForkedWorkers(self._session.guard)
        self._exported = ExportedEnvironment(self._forks.report)
        self._thread = threading.Thread(target=self._run, name="session", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # Called by the agent

    @property
    def state(self) -> State:
        """The newest known state of the run."""
        return self._state

    @property
    def backend(self) -> Backend:
        """The backend of the run."""
        return self._session.spec.backend

    @property
    def name(self) -> str:
        """The name of this node in the run."""
        return self._session.member.name

    @property
    def node(self) -> str:
        """The id of this node in the run."""
        return self._node

    @property
    def part(self) -> Assignment | None:
        """The part of this node; None before the first round, and while the agent waits for the next one."""
        return self._part

    @property
    def succeeded(self) -> bool:
        """Whether the node publishes that its workers have succeeded."""
        return self._session.member.final

    @property
    def excluded(self) -> bool:
        """Whether the other nodes continue without this one, now or as soon as its departure is published."""
        standing_by = self._part is None and self._state.phase is Phase.RUNNING
        return bool(self._stop_reason) or standing_by or isinstance(self._error, SessionEnded)

    @property
    def round_ended(self) -> bool:
        """Whether the agent must stop its workers, or this node takes part no more."""
        return bool(self._stop_reason) or self._error is not None

    @property
    def stop_reason(self) -> str:
        """Why the agent must stop its workers before it asks for the next round; empty if it need not.

        Raises the error that has ended the participation.
        """
        self._exported.remove()
        self._forks.update()
        with self._changed:
            if self._error is not None:
                raise self._error
            return self._stop_reason

    @property
    def nodes_waiting(self) -> int:
        """The number of nodes that wait for the next round, at least 1, if the agent must ask for it; 0 otherwise.

        Raises the error that has ended the participation.
        """
        # Only the register ends a round. A node that no new round would take in may wait at any time: nodes.max is
        # reached, or a member has succeeded and starts no workers again. Then the register keeps the round. Once it has
        # ended the round, the agent must stop its workers even if no node waits yet, for example after a failure.
        return max(1, self._observation.waiting if self._observation else 0) if self.stop_reason else 0

    def next_round(self) -> Assignment | None:
        """Wait for a round and return this node's part of it; None if the run has ended. No worker may be left.

        Raises SessionEnded if this node must not take part any more, RendezvousTimeout if no round formed in time, and
        StoreError if the run's directory could not be used for that time.
        """
        self._exported.remove()
        with self._changed:
            ended = self._part
            if ended is not None and ended.round > self._received and not self._stop_reason:
                ended = None  # the round has formed before the agent asked for it
        # The thread of the session replaces a part only after it has learned that no worker of it is left. If there is
        # none, a round may form at any moment, and its part must stay.
        if ended is not None:
            self._end_round(ended.round)
        with self._changed:
            self._changed.wait_for(lambda: self._part or self._error or self._state.phase.final)
            part = self._part
        if part is None and self._error is not None:
            raise self._error
        if part is not None:
            round = str(part.round)
            self._exported.set({**self._facts, "HPCELASTIC_ROUND": round, "HPCELASTIC_TOKEN": round})
            self._release_port()  # as late as possible: rank 0 is about to bind it
            self._received = part.round
        return part

    def finish(self) -> None:
        """Publish that the workers of this node have succeeded. The agent must not ask for another round."""
        self._exported.remove()
        part = self._part
        if part is None:
            return
        self._kill_leftovers()
        with self._changed:
            self._idle, self._part = True, None
            self._changed.notify_all()
        self._inbox.deliver(WorkersEnded(part.round, succeeded=True))
        with self._changed:
            self._changed.wait_for(lambda: self.succeeded or self._error)

    def wait_for_end(self) -> bool:
        """Return whether the run has ended, which takes a moment after the last node has succeeded."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._success_published or self._state.phase.final or self._error, DEPARTURE_TIMEOUT
            )
            return self._changed.wait_for(lambda: self._state.phase.final, _END_TIMEOUT)

    @property
    def _success_published(self) -> bool:
        """Whether the lease of this node tells that its workers have succeeded."""
        seen = self._observation.view.nodes.get(self._node) if self._observation else None
        return seen is not None and seen.member is not None and seen.member.final

    def close(self) -> None:
        """Publish the departure, so that no other node waits until the lease expires. No worker may be left."""
        atexit.unregister(self.close)
        if self._closing:
            return
        self._exported.remove()
        self._kill_leftovers()
        with self._changed:
            self._closing = self._idle = True
            self._changed.notify_all()
        self._inbox.wake()
        self._thread.join()
        self._session.depart()
        self._session.end_log()
        self._release_port()
        self._session.__exit__(None, None, None)
        self._forks.close()

    def _end_round(self, round: int) -> None:
        """Tell the thread of the session that no worker of ``round`` is left."""
        self._kill_leftovers()
        with self._changed:
            self._idle, self._part, self._stop_reason = True, None, ""
            self._changed.notify_all()
        self._inbox.deliver(WorkersEnded(round, succeeded=False))

    def _kill_leftovers(self) -> None:
        """Kill the processes that workers have left, before the node publishes that none is left."""
        if self._part is not None:
            self._forks.kill()
            kill_marked_processes(self._node, self._session.guard.pid)
            self._session.guard.disarm()

    # In the thread of the session

    def _run(self) -> None:
        try:
            self._session.start()
            while not self._closing and self._error is None:
                self._turn()
        except HpcElasticError as error:
            self._fail(error)
        except Exception as error:  # a defect of ours: the agent must learn of it instead of waiting for ever
            self._fail(HpcElasticError(f"internal error: {error!r}"))

    def _turn(self) -> None:
        session = self._session
        ready = readable([self._inbox, session.guard], session.seconds_left())
        if session.guard.fileno() in ready:
            session.guard_reported()
        if self._inbox.fileno() in ready:
            self._inbox.clear_wakeups()
        while self._inbox and not self._closing:
            self._handle(self._inbox.take())
        machine = session.state_machine
        if machine.left:
            reason = machine.notice.reason if machine.notice else ""
            raise SessionEnded(f"this node takes no part any more: {reason}")
        if session.seconds_left() == 0.0:
            raise session.timed_out()

    def _handle(self, message: Observation | HpcElasticError | WorkersEnded) -> None:
        if isinstance(message, WorkersEnded):
            self._workers_ended(message)
        elif isinstance(message, Observation):
            self._session.record(message)
            with self._changed:
                self._state, self._observation = message.state, message
                self._changed.notify_all()
            # The agent cannot pass a request to stop on: its workers are stopped at once.
            self._session.follow(message, polls=lambda: False)
        else:
            self._session.store_failed(message)

    def _workers_ended(self, ended: WorkersEnded) -> None:
        part = self._session.state_machine.part
        if part is not None and part.round == ended.round:
            if ended.succeeded:
                self._session.apply(self._session.state_machine.workers_succeeded(final=True))
                with self._changed:
                    self._changed.notify_all()
            else:
                self._session.apply(self._session.state_machine.stop_timed_out("the agent has stopped them"))
        elif ended.succeeded:  # other nodes had ended the round before they learned of the success
            self._session.apply(self._session.state_machine.depart())
            raise SessionEnded(f"the workers have succeeded after round {ended.round} had ended")

    def _perform(self, action: Action) -> None:
        """Execute an action. The end of the run is in the state."""
        if isinstance(action, ReservePort):
            self._reserve_port()
        elif isinstance(action, StartWorkers):
            self._hand_over(action)
        elif isinstance(action, ParkWorkers | StopWorkers):
            self._wait_until_stopped(action.reason)

    def _hand_over(self, start: StartWorkers) -> None:
        self._session.guard.arm(start.lease_from)
        self._session.old_rounds.begin(start.part)
        with self._changed:
            self._part, self._idle = start.part, False
            self._changed.notify_all()

    def _wait_until_stopped(self, reason: str) -> None:
        """Wait until the agent has stopped its workers. The rendezvous thread renews the lease meanwhile."""
        with self._changed:
            if not self._idle:
                self._stop_reason = reason
                if not self._state.phase.final:
                    self._report(f"the workers are to be stopped: {reason}")
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._idle)

    def _reserve_port(self) -> None:
        self._release_port()
        try:
            self._port = StoreListener.open_any(self._session.spec.network.port_range)
        except OSError as error:
            raise HpcElasticError(f"{self._node}: no port for the workers' store: {error}") from error
        self._session.state_machine = self._session.state_machine.with_port(self._port.port)

    def _release_port(self) -> None:
        port, self._port = self._port, None
        if port is not None:
            port.close()

    def _fail(self, error: HpcElasticError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
