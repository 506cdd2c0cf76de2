"""The rendezvous of plain torchrun, through files: ``torchrun --rdzv-backend=hpcelastic --rdzv-endpoint=DIR ...``.

torch finds it by this package's entry point (`hpcelastic.pytorch.plugin`). torchrun's agents go on as they are; what is
agreed among them, and who may go on without whom, is decided as among agents of ours, and their workers are fenced as
ours are. ``--rdzv-conf`` takes `TIMINGS`, ``interface`` and ``notifications``.
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
from hpcelastic.config.rdzv_conf import read_conf
from hpcelastic.errors import HpcElasticError, NameTaken
from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import State
from hpcelastic.pytorch.agent_store import AgentStore
from hpcelastic.pytorch.endpoint import run_directory
from hpcelastic.pytorch.errors import translated
from hpcelastic.pytorch.failures import failure_in_flight
from hpcelastic.pytorch.session import ExternalAgentSession, SessionEnded
from hpcelastic.rendezvous.notifier import Notifier
from hpcelastic.rendezvous.run import close_run, conclude_run, fail_run, read_state
from hpcelastic.slurm.entry import EnteredRun, enter_run, local_identity
from hpcelastic.storage.bounded import bounded
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import Register

BACKEND = "hpcelastic"

_TIMEOUT = 10.0
"""Seconds that the shared filesystem may take to be told that the run is over."""

_log = logging.getLogger(__name__)


def create_handler(params: RendezvousParameters) -> "FileRendezvousHandler":
    """A handler for the run ``params.run_id`` in the directory ``params.endpoint``. ValueError names a wrong option."""
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
    """One agent's side of the rendezvous in ``paths``; it takes no part before the first `next_rendezvous`."""

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
        self._held = contextlib.ExitStack()
        """Our name in the run."""

        self._if_dropped: weakref.finalize[..., FileRendezvousHandler] | None = None
        """Takes our part back should nobody call `shutdown`."""

    def get_backend(self) -> str:
        """The name that ``--rdzv-backend`` has."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """False: rank 0 serves the workers' store, at an address and a fresh port that all have agreed on."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round, no worker of this agent being left; its place there.

        Raises RendezvousClosedError if the run has ended, RendezvousTimeoutError if no round formed in time,
        RendezvousConnectionError if the directory can't be used, RendezvousStateError if what it holds makes no sense;
        SystemExit with status 0 if this node has to leave the run.
        """
        with translated():
            if self._session is None:
                self._session = self._enter()
            try:
                part = self._session.next_round()
            except SessionEnded as error:
                raise _ended_well() from error
            if part is None:
                raise self._closed()
            store = AgentStore(self._paths.store(part.round) / "agents", self._session.finish)
        bootstrap = RendezvousStoreInfo(part.master_addr, part.master_port)
        return RendezvousInfo(store, part.group_rank, part.group_world_size, bootstrap)

    def is_closed(self) -> bool:
        """Whether the run has ended, so that no round will form any more."""
        with translated():
            if self._session is not None and self._session.state.phase.final:
                return True
            begun = Register(self._paths.register, writer="").numbers()
            return bool(begun) and read_state(self._paths).phase.final

    def set_closed(self) -> None:
        """End the run for all nodes."""
        with translated():
            if self._session is None:
                self._session = self._enter()
            name = self._session.name
            self._tell(lambda notifier: close_run(self._paths, name, f"torchrun has ended on {name}", notifier))

    def num_nodes_waiting(self) -> int:
        """More than 0 once this agent is to stop its workers and ask for the next round, whatever the reason."""
        with translated():
            try:
                return int(self._session is not None and bool(self._session.stop_reason))
            except SessionEnded as error:
                raise _ended_well() from error

    def get_run_id(self) -> str:
        """What ``--rdzv-id`` is."""
        return self._run_id

    def shutdown(self) -> bool:
        """Take no part any more; False if that failed.

        The round goes on if the workers of this node have succeeded, and so does the run if others have gone on
        without it already. Else the run ends.
        """
        session, self._session = self._session, None
        if self._if_dropped is not None:
            self._if_dropped.detach()
        try:
            with self._held:
                if session is not None:
                    self._leave(session)
        except (HpcElasticError, OSError) as error:
            _log.warning("the rendezvous %s could not be shut down: %s", self._run_id, error)
            return False
        return True

    def _enter(self) -> ExternalAgentSession:
        here = replace(local_identity(), address=self._address)
        for place in numbered_identities(here):
            with contextlib.suppress(NameTaken), contextlib.ExitStack() as held:
                node = held.enter_context(
                    enter_run(self._paths, self._run_id, self._settings, place, self._interface, workers=1)
                )
                session = self._begun(node)
                self._held = held.pop_all()
                self._if_dropped = weakref.finalize(self, _take_back, session, self._held)
                self._if_dropped.atexit = False  # the delegate says goodbye there itself
                return session
        raise AssertionError("places do not end")

    def _begun(self, here: EnteredRun) -> ExternalAgentSession:
        if here.state.phase.final:
            raise self._closed(here.state.reason)
        return ExternalAgentSession(self._paths, here, self._notifications)

    def _leave(self, session: ExternalAgentSession) -> None:
        if not session.succeeded:
            try:
                if not session.excluded:
                    self._give_up(session)
            finally:
                session.close()
            return
        ended = session.wait_for_end()
        session.close()
        if not ended:  # nobody else may be left to see that all have succeeded
            self._tell(lambda notifier: conclude_run(self._paths, session.name, notifier))

    def _give_up(self, session: ExternalAgentSession) -> None:
        name, part = session.name, session.part
        failure = failure_in_flight(session.node, part.round) if part else None
        reason = (
            f"rank {failure.rank} failed on {name}: {failure.message}" if failure else f"torchrun has ended on {name}"
        )
        self._tell(lambda notifier: fail_run(self._paths, name, reason, (failure,) if failure else (), notifier))

    def _tell(self, change: Callable[[Notifier | None], State]) -> None:
        """Change the run's state, in bounded time, and tell the other nodes."""

        def tell() -> None:
            with outside_notifier(self._paths, "torchrun") as notifier:
                change(notifier)

        bounded(tell, _TIMEOUT, str(self._paths.root))

    def _closed(self, reason: str = "") -> RendezvousClosedError:
        reason = reason or (self._session.state.reason if self._session else "")
        return RendezvousClosedError(
            f"{self._paths.root}: the run has ended ({reason}); for another one give another --rdzv-id"
        )


def _take_back(session: ExternalAgentSession, held: contextlib.ExitStack) -> None:
    """Leave the run for a handler that was dropped, without ending the run."""

    def leave() -> None:
        with held:
            session.close()

    # The garbage collector may call this in any thread, in one of the delegate's own too, and `close` waits for them.
    threading.Thread(target=leave, name="leaves a run", daemon=True).start()


def _ended_well() -> SystemExit:
    """The end of an agent whose node leaves the run.

    torch has RendezvousGracefulExitError for it. But its agent then returns None, which `launch_agent` takes for a
    result: torchrun ends with AttributeError. SystemExit passes through both; `shutdown` is called on its way.
    """
    return SystemExit(0)
