"""The rendezvous of plain torchrun, through files: ``torchrun --rdzv-backend=hpcelastic --rdzv-endpoint=DIR ...``.

torch finds it by this package's entry point (`hpcelastic.pytorch.plugin`). torchrun's agents are not modified. Rounds
and the state of the run are decided as for hpcelastic's own agents, and workers are fenced in the same way.
``--rdzv-conf`` takes `TIMINGS`, ``interface`` and ``notifications``.
"""

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from hpcelastic.agent.node_name_lock import numbered_identities
from hpcelastic.agent.notifier import outside_notifier
from hpcelastic.backends.connect import open_backend
from hpcelastic.bootstrap import EnteredRun, enter_run, local_identity
from hpcelastic.config.rdzv_conf import read_conf
from hpcelastic.errors import HpcElasticError, NameTaken
from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import State
from hpcelastic.pytorch.agent_store import AgentStore
from hpcelastic.pytorch.endpoint import run_directory
from hpcelastic.pytorch.errors import torch_errors
from hpcelastic.pytorch.failures import failure_in_flight
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


def create_handler(params: RendezvousParameters) -> "FileRendezvousHandler":
    """Create a handler for the run ``params.run_id`` in the directory ``params.endpoint``.

    Raises ValueError that names a wrong option.
    """
    paths = RunPaths(run_directory(params))
    try:
        conf = read_conf(params.config, extra_keys=("interface", "notifications"))
    except ValueError as error:
        raise ValueError(f"--rdzv-conf: {error}") from None
    for line in conf.warnings:
        _log.warning("--rdzv-conf: %s", line)
    settings = Settings(NodeRange(params.min_nodes, params.max_nodes), conf.settings)
    interface = params.get("interface")
    notifications = params.get_as_bool("notifications", params.get_as_bool("doorbell", True))  # the old name
    return FileRendezvousHandler(
        paths, params.run_id, settings, params.local_addr or "", interface, bool(notifications)
    )


class FileRendezvousHandler(RendezvousHandler):
    """One agent's side of the rendezvous in ``paths``. It joins the run at the first `next_rendezvous`."""

    def __init__(
        self,
        paths: RunPaths,
        run_id: str,
        settings: Settings,
        address: str = "",
        interface: str | None = None,
        notifications: bool = True,
    ) -> None:
        self._paths, self._run_id, self._settings = paths, run_id, settings
        self._address, self._interface, self._notifications = address, interface, notifications
        self._session: ExternalAgentSession | None = None
        self._run_context = contextlib.ExitStack()
        """The context in which this node has entered the run. It holds the lock of the node's name."""

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
        with torch_errors():
            if self._session is None:
                self._session = self._enter()
            try:
                part = self._session.next_round()
            except SessionEnded as error:
                raise _graceful_exit() from error
            if part is None:
                raise self._closed_error()
            store = AgentStore(self._paths.store(part.round) / "agents", self._session.finish)
        bootstrap = RendezvousStoreInfo(part.master_addr, part.master_port)
        return RendezvousInfo(store, part.group_rank, part.group_world_size, bootstrap)

    def is_closed(self) -> bool:
        """Return whether the run has ended, so that no further round can form."""
        with torch_errors():
            if self._session is not None and self._session.state.phase.final:
                return True
            if not Register(self._paths.register, writer="").numbers():
                return False
            with contextlib.closing(open_backend(self._paths)) as backend:
                return read_state(backend).phase.final

    def set_closed(self) -> None:
        """End the run for all nodes."""
        with torch_errors():
            if self._session is None:
                self._session = self._enter()
            name, backend = self._session.name, self._session.backend
            self._change_state(lambda notifier: close_run(backend, name, f"torchrun has ended on {name}", notifier))

    def num_nodes_waiting(self) -> int:
        """Return 1 if this agent must stop its workers and ask for the next round, for any reason; 0 otherwise."""
        with torch_errors():
            try:
                return int(self._session is not None and bool(self._session.stop_reason))
            except SessionEnded as error:
                raise _graceful_exit() from error

    def get_run_id(self) -> str:
        """Return the value of ``--rdzv-id``."""
        return self._run_id

    def shutdown(self) -> bool:
        """Leave the run. Return False if that failed.

        The run continues if the workers of this node have succeeded, or if the other nodes already continue without
        this one. Otherwise the run ends.
        """
        session, self._session = self._session, None
        if self._finalizer is not None:
            self._finalizer.detach()
        try:
            with self._run_context:
                if session is not None:
                    self._leave(session)
        except (HpcElasticError, OSError) as error:
            _log.warning("the rendezvous %s could not be shut down: %s", self._run_id, error)
            return False
        return True

    def _enter(self) -> ExternalAgentSession:
        local = replace(local_identity(), address=self._address)
        for identity in numbered_identities(local):
            with contextlib.suppress(NameTaken), contextlib.ExitStack() as stack:
                entered = stack.enter_context(
                    enter_run(self._paths, self._run_id, self._settings, identity, self._interface, workers=1)
                )
                session = self._start_session(entered)
                self._run_context = stack.pop_all()
                self._finalizer = weakref.finalize(self, _leave_in_background, session, self._run_context)
                self._finalizer.atexit = False  # at exit, the session publishes its departure itself
                return session
        raise AssertionError("numbered_identities is endless")

    def _start_session(self, entered: EnteredRun) -> ExternalAgentSession:
        if entered.state.phase.final:
            raise self._closed_error(entered.state.reason)
        return ExternalAgentSession(self._paths, entered, self._notifications)

    def _leave(self, session: ExternalAgentSession) -> None:
        if not session.succeeded:
            try:
                if not session.excluded:
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
            with outside_notifier(self._paths, "torchrun") as notifier:
                change(notifier)

        bounded(update, _STATE_TIMEOUT, str(self._paths.root))

    def _closed_error(self, reason: str = "") -> RendezvousClosedError:
        reason = reason or (self._session.state.reason if self._session else "")
        return RendezvousClosedError(
            f"{self._paths.root}: the run has ended ({reason}); for another run, use another --rdzv-id"
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
