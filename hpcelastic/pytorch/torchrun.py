"""The rendezvous of plain torchrun, through files: ``torchrun --rdzv-backend=hpcelastic --rdzv-endpoint=DIR ...``.

torch finds it by this package's entry point (`hpcelastic.pytorch.plugin`). torchrun's agents go on as they are; what is
agreed among them, and who may go on without whom, is decided as among agents of ours, and their workers are fenced as
ours are. ``--rdzv-conf`` takes `TIMINGS`, ``interface`` and ``doorbell``.
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

from hpcelastic.agent.bell import bell_from_outside
from hpcelastic.agent.tenancy import places
from hpcelastic.config.rdzv_conf import read_conf
from hpcelastic.errors import HpcElasticError, NameTaken
from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import State
from hpcelastic.pytorch.agent_store import AgentStore
from hpcelastic.pytorch.delegate import Delegate, Left
from hpcelastic.pytorch.endpoint import run_directory
from hpcelastic.pytorch.errors import translated
from hpcelastic.pytorch.failures import failure_in_flight
from hpcelastic.rendezvous.rendezvous import Doorbell, close_run, conclude_run, fail_run, read_state
from hpcelastic.slurm.entry import Entered, entered, place_here
from hpcelastic.store.bounded import bounded
from hpcelastic.store.paths import RunPaths
from hpcelastic.store.register import Register

BACKEND = "hpcelastic"

_PATIENCE = 10.0
"""Seconds that the shared filesystem may take to be told that the run is over."""

_log = logging.getLogger(__name__)


def create_handler(params: RendezvousParameters) -> "FileRendezvousHandler":
    """A handler for the run ``params.run_id`` in the directory ``params.endpoint``. ValueError names a wrong option."""
    paths = RunPaths(run_directory(params))
    try:
        conf = read_conf(params.config, beside=("interface", "doorbell"))
    except ValueError as error:
        raise ValueError(f"--rdzv-conf: {error}") from None
    for line in conf.unneeded:
        _log.warning("--rdzv-conf: %s", line)
    settings = Settings(NodeRange(params.min_nodes, params.max_nodes), conf.settings)
    interface = params.get("interface")
    doorbell = params.get_as_bool("doorbell", True)
    return FileRendezvousHandler(paths, params.run_id, settings, params.local_addr or "", interface, bool(doorbell))


class FileRendezvousHandler(RendezvousHandler):
    """One agent's side of the rendezvous in ``paths``; it takes no part before the first `next_rendezvous`."""

    def __init__(
        self,
        paths: RunPaths,
        run_id: str,
        settings: Settings,
        address: str = "",
        interface: str | None = None,
        doorbell: bool = True,
    ) -> None:
        self._paths, self._run_id, self._settings = paths, run_id, settings
        self._address, self._interface, self._doorbell = address, interface, doorbell
        self._delegate: Delegate | None = None
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
            if self._delegate is None:
                self._delegate = self._enter()
            try:
                part = self._delegate.next_round()
            except Left as error:
                raise _ended_well() from error
            if part is None:
                raise self._closed()
            store = AgentStore(self._paths.store(part.round) / "agents", self._delegate.finish)
        bootstrap = RendezvousStoreInfo(part.master_addr, part.master_port)
        return RendezvousInfo(store, part.group_rank, part.group_world_size, bootstrap)

    def is_closed(self) -> bool:
        """Whether the run has ended, so that no round will form any more."""
        with translated():
            if self._delegate is not None and self._delegate.state.phase.final:
                return True
            begun = Register(self._paths.register, writer="").numbers()
            return bool(begun) and read_state(self._paths).phase.final

    def set_closed(self) -> None:
        """End the run for all nodes."""
        with translated():
            if self._delegate is None:
                self._delegate = self._enter()
            name = self._delegate.name
            self._tell(lambda bell: close_run(self._paths, name, f"torchrun has ended on {name}", bell))

    def num_nodes_waiting(self) -> int:
        """More than 0 once this agent is to stop its workers and ask for the next round, whatever the reason."""
        with translated():
            try:
                return int(self._delegate is not None and bool(self._delegate.over))
            except Left as error:
                raise _ended_well() from error

    def get_run_id(self) -> str:
        """What ``--rdzv-id`` is."""
        return self._run_id

    def shutdown(self) -> bool:
        """Take no part any more; False if that failed.

        The round goes on if the workers of this node have succeeded, and so does the run if others have gone on
        without it already. Else the run ends.
        """
        delegate, self._delegate = self._delegate, None
        if self._if_dropped is not None:
            self._if_dropped.detach()
        try:
            with self._held:
                if delegate is not None:
                    self._leave(delegate)
        except (HpcElasticError, OSError) as error:
            _log.warning("the rendezvous %s could not be shut down: %s", self._run_id, error)
            return False
        return True

    def _enter(self) -> Delegate:
        here = replace(place_here(), address=self._address)
        for place in places(here):
            with contextlib.suppress(NameTaken), contextlib.ExitStack() as held:
                node = held.enter_context(
                    entered(self._paths, self._run_id, self._settings, place, self._interface, workers=1)
                )
                delegate = self._begun(node)
                self._held = held.pop_all()
                self._if_dropped = weakref.finalize(self, _take_back, delegate, self._held)
                self._if_dropped.atexit = False  # the delegate says goodbye there itself
                return delegate
        raise AssertionError("places do not end")

    def _begun(self, here: Entered) -> Delegate:
        if here.state.phase.final:
            raise self._closed(here.state.reason)
        return Delegate(self._paths, here, self._doorbell)

    def _leave(self, delegate: Delegate) -> None:
        if not delegate.succeeded:
            try:
                if not delegate.parted:
                    self._give_up(delegate)
            finally:
                delegate.close()
            return
        ended = delegate.await_the_end()
        delegate.close()
        if not ended:  # nobody else may be left to see that all have succeeded
            self._tell(lambda bell: conclude_run(self._paths, delegate.name, bell))

    def _give_up(self, delegate: Delegate) -> None:
        name, part = delegate.name, delegate.part
        failure = failure_in_flight(delegate.node, part.round) if part else None
        reason = (
            f"rank {failure.rank} failed on {name}: {failure.message}" if failure else f"torchrun has ended on {name}"
        )
        self._tell(lambda bell: fail_run(self._paths, name, reason, (failure,) if failure else (), bell))

    def _tell(self, change: Callable[[Doorbell | None], State]) -> None:
        """Change the run's state, in bounded time, and tell the other nodes."""

        def tell() -> None:
            with bell_from_outside(self._paths, "torchrun") as bell:
                change(bell)

        bounded(tell, _PATIENCE, str(self._paths.root))

    def _closed(self, reason: str = "") -> RendezvousClosedError:
        reason = reason or (self._delegate.state.reason if self._delegate else "")
        return RendezvousClosedError(
            f"{self._paths.root}: the run has ended ({reason}); for another one give another --rdzv-id"
        )


def _take_back(delegate: Delegate, held: contextlib.ExitStack) -> None:
    """Leave the run for a handler that was dropped, without ending the run."""

    def leave() -> None:
        with held:
            delegate.close()

    # The garbage collector may call this in any thread, in one of the delegate's own too, and `close` waits for them.
    threading.Thread(target=leave, name="leaves a run", daemon=True).start()


def _ended_well() -> SystemExit:
    """The end of an agent whose node leaves the run.

    torch has RendezvousGracefulExitError for it. But its agent then returns None, which `launch_agent` takes for a
    result: torchrun ends with AttributeError. SystemExit passes through both; `shutdown` is called on its way.
    """
    return SystemExit(0)
