"""The store of a round: a reserved port while the node is ready, and a server once the first client connects."""

from collections.abc import Mapping

from hpcelastic.agent.event_loop import EventLoop
from hpcelastic.agent.session import Session
from hpcelastic.agent.store_server import StoreListener, StoreServer, store_server_environment, store_server_spawner
from hpcelastic.agent.worker import WorkerResources
from hpcelastic.errors import HpcElasticError
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.events import StoreLost, StoreServed


class RoundStore:
    """The port that this node reserves for the store of the next round, and the server that listens there in a round.

    ``port`` is a fixed port to prefer, 0 for any. ``environ`` is the environment of the node's workers.
    """

    def __init__(
        self, session: Session, loop: EventLoop, resources: WorkerResources, port: int, environ: Mapping[str, str]
    ) -> None:
        self._session, self._loop, self._resources = session, loop, resources
        self._fixed_port, self._environ = port, environ
        self._store: StoreListener | StoreServer | None = None

    @property
    def server_pid(self) -> int | None:
        """The process id of the server; None if no server runs on this node."""
        return self._store.pid if isinstance(self._store, StoreServer) else None

    def reserve(self) -> int:
        """Reserve a port and return its number."""
        self.close()
        try:
            self._store = self._at_fixed_port() or StoreListener.open_any(self._session.spec.network.port_range)
        except OSError as error:
            raise HpcElasticError(f"{self._session.member.name}: no port for the workers' store: {error}") from error
        return self._store.port

    def offer(self, part: Assignment, lease_from: float) -> None:
        """Serve the store to its first client if this node has group rank 0; otherwise release the port."""
        store = self._store
        if part.group_rank == 0 and isinstance(store, StoreListener):
            self._loop.watch(store, lambda: self._serve(store, part.round, lease_from))
        else:
            self.close()

    def close(self) -> None:
        """Release the port, or end the server."""
        store, self._store = self._store, None
        if store is None:
            return
        self._loop.unwatch(store)
        store.close()
        if isinstance(store, StoreServer):
            self._session.guard.remove(store.pid)

    def _at_fixed_port(self) -> StoreListener | None:
        try:
            return StoreListener.open(self._fixed_port) if self._fixed_port else None
        except OSError as error:  # with env:// any other port does
            port = self._fixed_port
            self._session.report(f"port {port} is not free ({error}); the store of the next round is at another one")
            return None

    def _serve(self, port: StoreListener, round: int, lease_from: float) -> None:
        self._loop.unwatch(port)
        try:
            server = self._store = port.serve(
                store_server_spawner(self._resources, lease_from, store_server_environment(self._environ))
            )
        except OSError as error:
            raise HpcElasticError(f"{self._session.member.name}: cannot serve the workers' store: {error}") from error
        self._session.log(StoreServed(round=round, port=port.port, pid=server.pid))
        self._loop.watch(server, lambda: self._lost(server, round))

    def _lost(self, server: StoreServer, round: int) -> None:
        """The server has ended, which is no failure of a worker. A server that could not start never will."""
        self._loop.unwatch(server)
        self._store = None
        self._session.guard.remove(server.pid)
        exit_code = server.reap()
        self._session.log(StoreLost(round=round, exit_code=exit_code))
        if exit_code > 0:
            name = self._session.member.name
            raise HpcElasticError(f"{name}: the store of round {round} ended with status {exit_code}")
        self._session.report(f"the process that served the store of round {round} was killed; a new round is needed")
        self._session.apply(self._session.state_machine.lease_expired("the store was lost"))
