"""The port of a round's store, and the process that serves the store at that port.

An agent that is ready listens on a free port before it publishes that port. So no other process can take the port, and
a worker that connects early waits in the kernel's queue. The agent accepts no connection. The first connection makes
the socket readable, and then the agent starts a store server that takes over the socket
(`hpcelastic.worker.store_server_main`). If no script uses the store, no server is started.
"""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from hpcelastic.agent.fork_server import shell_prefix
from hpcelastic.agent.spawn_request import WorkerCommand
from hpcelastic.agent.worker import FreshProcess, Process, WorkerResources
from hpcelastic.ipc.readiness import readable
from hpcelastic.network.sockets import at_free_port

STORE_SERVER_MODULE = "hpcelastic.worker.store_server_main"

_BACKLOG = 4096
"""Connections that may wait until the store is served. Linux limits it to net.core.somaxconn; further workers retry."""

_IGNORED_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""SLURM signals every process of a task, but workers may need the store until the last of them has ended."""

_SPAWN_TIMEOUT = 2.0
"""Seconds in which the fork server spawns a process, unless it is busy. It has already spawned the workers."""

_END_TIMEOUT = 5.0
"""Seconds in which a killed process ends, unless a filesystem that hangs blocks it."""

Spawn = Callable[[int], Process]
"""Starts a store server on the listening socket with this descriptor."""


class StoreServer:
    """A running store server. It turns readable when the server has ended."""

    def __init__(self, process: Process) -> None:
        self.pid = process.pid
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)

    def fileno(self) -> int:
        return self._pidfd

    def reap(self) -> int:
        """Reap the server. Return its exit status, or minus the signal that ended it."""
        os.close(self._pidfd)
        return self._process.wait()

    def close(self) -> None:
        """End the server. On return none of its code runs any more."""
        with contextlib.suppress(ProcessLookupError):  # killed with the workers, it may be reaped as their orphan
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if readable([self._pidfd], _END_TIMEOUT):
            self.reap()
        else:
            threading.Thread(target=self.reap, name="reaper of the store server", daemon=True).start()


class StoreListener:
    """A listening TCP socket. It turns readable when the first client has connected."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.port: int = listener.getsockname()[1]

    @classmethod
    def open(cls, port: int = 0) -> "StoreListener":
        """Listen on ``port`` at all addresses of this node; 0 selects a free port. Raises OSError if it is taken."""
        try:
            return cls(_listen(socket.AF_INET6, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:  # perhaps by IPv6 only, and clients with IPv6 would reach that socket
                raise
            return cls(_listen(socket.AF_INET, port))  # a kernel without IPv6

    @classmethod
    def open_any(cls, ports: Sequence[int] = ()) -> "StoreListener":
        """Listen on one of ``ports``, by default on any. Raises OSError if none is free."""
        return at_free_port(cls.open, ports)

    def fileno(self) -> int:
        return self._listener.fileno()

    def serve(self, spawn: Spawn) -> StoreServer:
        """Hand over the socket to a store server. The agent's copy is closed, so that only the server listens."""
        with self._listener:
            return StoreServer(spawn(self._listener.fileno()))

    def close(self) -> None:
        """Release the port, and close the connections that wait."""
        self._listener.close()


def _listen(family: socket.AddressFamily, port: int) -> socket.socket:
    """Return a listening socket.

    A free port is bound without SO_REUSEADDR: with it, another process that sets it could bind the port until this
    one listens. A fixed ``port``, which every round uses, needs it, because connections of the last round may not have
    timed out.
    """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        if family is socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
        listener.listen(_BACKLOG)
        stack.pop_all()
        return listener


def store_server_environment(common: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the store server: the variables ``common`` to the node's workers, and no GPU.

    torch looks up the name of each client, for its log. The server has one thread, and all workers wait for it. So this
    process asks no name server. After the first lookup that fails, torch looks up no further names (socket.cpp).
    """
    return {**common, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "RES_OPTIONS": "attempts:0"}


def store_server_spawner(resources: WorkerResources, lease_from: float, environ: Mapping[str, str]) -> Spawn:
    """Return the function that starts the store server of a round that began under the lease of ``lease_from``.

    The server is a fork of the fork server, which has imported torch, or else a fresh interpreter. In both cases the
    guard knows it. The function raises OSError if the server cannot be started.
    """

    def spawn(listener: int) -> Process:
        process = _fork(resources, lease_from, environ, listener)
        if process is None:
            process = _exec(resources, environ, listener)
            resources.guard.add(process.pid, lease_from)
        return process

    return spawn


def _fork(resources: WorkerResources, lease_from: float, environ: Mapping[str, str], listener: int) -> Process | None:
    request = resources.fork_server.request_spawn() if resources.fork_server is not None else None
    if request is None:
        return None
    process = None
    with contextlib.ExitStack() as stack:
        stack.callback(request.cancel)
        if readable([request], _SPAWN_TIMEOUT):
            process = request.process()
        if process is None:
            return None
        resources.guard.add(process.pid, lease_from)
        stack.pop_all()
    if request.send_command(WorkerCommand(["-m", STORE_SERVER_MODULE], environ, 1, 2, _IGNORED_SIGNALS, [listener])):
        return process
    resources.guard.remove(process.pid)
    return None


def _exec(resources: WorkerResources, environ: Mapping[str, str], listener: int) -> Process:
    process = subprocess.Popen(
        [*shell_prefix(_IGNORED_SIGNALS), sys.executable, "-u", "-m", STORE_SERVER_MODULE, str(listener)],
        env=environ,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=(listener, *resources.keep_fds),
    )
    return FreshProcess(process)
