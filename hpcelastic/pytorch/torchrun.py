"""The rendezvous of plain torchrun, through files: ``torchrun --rdzv-backend=hpcelastic --rdzv-endpoint=DIR ...``.

torch finds it by this package's entry point (`hpcelastic.pytorch.plugin`). torchrun's agents are not modified. Rounds
and the state of the run are decided as for hpcelastic's own agents, and workers are fenced in the same way.
``--rdzv-conf`` takes `TIMINGS`, ``interface``, ``ports`` and ``notifications``.
"""

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from torch.distributed.elastic.events.api import NodeState
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from hpcelastic.agent.nonblocking_output import nonblocking_stderr
from hpcelastic.agent.notifier import outside_notifier
from hpcelastic.backends.connect import open_backend
from hpcelastic.bootstrap import local_identity
from hpcelastic.config.rdzv_conf import read_conf
from hpcelastic.entry import EnteredRun, Entry, enter_run
from hpcelastic.errors import HpcElasticError
from hpcelastic.network.settings import NetworkSettings
from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import State
from hpcelastic.pytorch.agent_store import AgentRound, AgentStore
from hpcelastic.pytorch.endpoint import run_directory
from hpcelastic.pytorch.errors import torch_errors
from hpcelastic.pytorch.failures import failure_in_flight, signal_in_flight
from hpcelastic.pytorch.rendezvous_events import RendezvousEvents
from hpcelastic.pytorch.session import ExternalAgentSession, SessionEnded
from hpcelastic.rendezvous.notifier import Notifier
from hpcelastic.rendezvous.run import close_run, conclude_run, fail_run, read_state
from hpcelastic.storage.bounded import bounded
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import Register

BACKEND = "hpcelastic"

_STATE_TIMEOUT = 10.0
"""Maximum seconds to write the end of the run to the shared filesystem."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HandlerSpec:
    """The run that a handler joins, and the settings of its node."""

    paths: RunPaths
    run_id: str
    settings: Settings
    address: str = ""
    """Address at which other nodes reach this one; empty to detect it."""

    network: NetworkSettings = field(default_factory=NetworkSettings)


def create_handler(params: RendezvousParameters) -> "FileRendezvousHandler":
    """Create a handler for the run ``params.run_id`` in the directory ``params.endpoint``.

    Raises ValueError that names a wrong option.
    """
    with RendezvousEvents(params.run_id, __name__).errors("create_handler"):
        return FileRendezvousHandler(_handler_spec(params))


def _handler_spec(params: RendezvousParameters) -> HandlerSpec:
    paths = RunPaths(run_directory(params))
    notifications = params.get_as_bool("notifications", params.get_as_bool("doorbell", True))  # the old name
    try:
        conf = read_conf(params.config, extra_keys=("interface", "notifications", "ports"))
        network = NetworkSettings(params.get("interface"), params.get("ports"), bool(notifications))
    except ValueError as error:
        raise ValueError(f"--rdzv-conf: {error}") from None
    for line in conf.warnings:
        _log.warning("--rdzv-conf: %s", line)
    settings = Settings(NodeRange(params.min_nodes, params.max_nodes), conf.settings)
    return HandlerSpec(paths, params.run_id, settings, params.local_addr or "", network)


class FileRendezvousHandler(RendezvousHandler):
    """One agent's side of the rendezvous of ``spec``. It joins the run at the first `next_rendezvous`.

    Its events are recorded as those of torch's `DynamicRendezvousHandler`.
    """

    def __init__(self, spec: HandlerSpec) -> None:
        self.spec = spec
        self._events = RendezvousEvents(spec.run_id, type(self).__name__)
        self._session: ExternalAgentSession | None = None
        self._run_context = contextlib.ExitStack()
        """The context in which this node has entered the run. It holds the lock of the node's name."""

        self._closed = ""
        """Why this agent has closed the run; empty if it has not. The session may learn of that later."""

        self._finalizer: weakref.finalize[..., FileRendezvousHandler] | None = None
        """Leaves the run if the handler is dropped without a call of `shutdown`."""

    def get_backend(self) -> str:
        """Return the value of ``--rdzv-backend``."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """False, because rank 0 serves the workers' store, at an address and a new port that are part of the round."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round and return this node's part of it. No worker of this agent may be left.

        Raises RendezvousClosedError if the run has ended, RendezvousTimeoutError if no round formed in time,
        RendezvousConnectionError if the directory cannot be used, RendezvousStateError if its content cannot be
        decoded, and SystemExit with status 0 if this node must leave the run.
        """
        with self._reported("next_rendezvous"):
            session = self._session or self._enter()
            self._events.record("next_rendezvous", session.name, "attempts to join the next round of")
            try:
                part = None if self._closed else session.next_round()
            except SessionEnded as error:
                raise _graceful_exit() from error
            if part is None:
                raise self._closed_error(self._closed)
            round = AgentRound(part.group_rank, lambda: session.round_ended, session.finish)
            store = AgentStore(self.spec.paths.store(part.round) / "agents", round)
        self._events.record("next_rendezvous", session.name, f"has joined round {part.round} of", part=part)
        bootstrap = RendezvousStoreInfo(part.master_addr, part.master_port)
        return RendezvousInfo(store, part.group_rank, part.group_world_size, bootstrap)

    def is_closed(self) -> bool:
        """Return whether the run has ended, so that no further round can form."""
        with self._reported("is_closed"):
            if self._closed or (self._session is not None and self._session.state.phase.final):
                return True
            if not Register(self.spec.paths.register, writer="").numbers():
                return False
            with contextlib.closing(open_backend(self.spec.paths)) as backend:
                return read_state(backend).phase.final

    def set_closed(self) -> None:
        """End the run for all nodes."""
        with self._reported("set_closed"):
            session = self._session or self._enter()
            reason = f"torchrun has ended on {session.name}"
            self._change_state(lambda notifier: close_run(session.backend, session.name, reason, notifier))
            self._closed = reason
        self._events.record("set_closed", session.name, "has closed", NodeState.SUCCEEDED)

    def num_nodes_waiting(self) -> int:
        """Return the number of nodes that wait for the next round, if this agent has to ask for it; 0 otherwise.

        If the round has ended, for any reason, it is at least 1: the agent must stop its workers. While the round goes
        on it is 0, also if there are nodes that it cannot take in.
        """
        with self._reported("num_nodes_waiting"):
            try:
                return 0 if self._session is None else self._session.nodes_waiting
            except SessionEnded as error:
                raise _graceful_exit() from error

    def get_run_id(self) -> str:
        """Return the value of ``--rdzv-id``."""
        return self.spec.run_id

    def shutdown(self) -> bool:
        """Leave the run. Return False if that failed.

        The run continues if the workers of this node have succeeded, if the other nodes already continue without this
        one, or if a signal ends this agent. Otherwise the run ends.
        """
        session, self._session = self._session, None
        if self._finalizer is not None:
            self._finalizer.detach()
        if session is None:
            return True
        try:
            with self._run_context:
                self._leave(session)
        except (HpcElasticError, OSError) as error:
            _log.warning("the rendezvous %s could not be shut down: %s", self.spec.run_id, error)
            self._events.record("shutdown", session.name, f"has failed ({error}) to leave", NodeState.FAILED)
            return False
        self._events.record("shutdown", session.name, "has left", NodeState.SUCCEEDED)
        return True

    @contextlib.contextmanager
    def _reported(self, action: str) -> Iterator[None]:
        """Raise errors of hpcelastic within the block as torch's, and record each error as an event."""
        with self._events.errors(action), torch_errors():
            yield

    def _enter(self) -> ExternalAgentSession:
        spec, local = self.spec, replace(local_identity(), address=self.spec.address)
        with contextlib.ExitStack() as stack:
            # Standard error is torchrun's own. If it is full, closed or stuck, the node stays in the run.
            output, interface = stack.enter_context(nonblocking_stderr()), spec.network.interface
            entry = Entry(spec.paths, spec.run_id, spec.settings, local, interface, any_name=True, output=output)
            entered = stack.enter_context(enter_run(entry))
            session = self._start_session(entered)
            self._run_context = stack.pop_all()
        self._finalizer = weakref.finalize(self, _leave_in_background, session, self._run_context)
        self._finalizer.atexit = False  # at exit, the session publishes its departure itself
        self._session = session
        self._events.record("next_rendezvous", session.name, "takes part in", NodeState.INIT)
        return session

    def _start_session(self, entered: EnteredRun) -> ExternalAgentSession:
        if entered.found.state.phase.final:
            raise self._closed_error(entered.found.state.reason)
        return ExternalAgentSession(self.spec.paths, entered, self.spec.network)

    def _leave(self, session: ExternalAgentSession) -> None:
        if not session.succeeded:
            try:
                if not session.excluded and not signal_in_flight():
                    self._fail_run(session)
            finally:
                session.close()
            return
        ended = session.wait_for_end()
        session.close()
        if not ended:  # no other agent may be left that can detect the success of all nodes
            self._change_state(lambda notifier: conclude_run(session.backend, session.name, notifier))

    def _fail_run(self, session: ExternalAgentSession) -> None:
        name, part = session.name, session.part
        failure = failure_in_flight(session.node, part.round) if part else None
        reason = (
            f"rank {failure.rank} failed on {name}: {failure.message}" if failure else f"torchrun has ended on {name}"
        )
        self._change_state(
            lambda notifier: fail_run(session.backend, name, reason, (failure,) if failure else (), notifier)
        )

    def _change_state(self, change: Callable[[Notifier | None], State]) -> None:
        """Change the run's state, in bounded time, and notify the other nodes."""

        def update() -> None:
            with outside_notifier(self.spec.paths, "torchrun") as notifier:
                change(notifier)

        bounded(update, _STATE_TIMEOUT, str(self.spec.paths.root))

    def _closed_error(self, reason: str = "") -> RendezvousClosedError:
        reason = reason or (self._session.state.reason if self._session else "")
        return RendezvousClosedError(
            f"{self.spec.paths.root}: the run has ended ({reason}); for another run, use another --rdzv-id"
        )


def _leave_in_background(session: ExternalAgentSession, run_context: contextlib.ExitStack) -> None:
    """Leave the run of a handler that was dropped. The run continues."""

    def leave() -> None:
        with run_context:
            session.close()

    # The garbage collector may call this in any thread, including the session's own threads, for which `close` waits.
    threading.Thread(target=leave, name="leave run", daemon=True).start()


def _graceful_exit() -> SystemExit:
    """Return the exception that ends an agent whose node leaves the run.

    torch has RendezvousGracefulExitError for this case. But its agent then returns None, which `launch_agent` uses as a
    result, so that torchrun fails with AttributeError. SystemExit passes through both, and `shutdown` is called.
    """
    return SystemExit(0)
