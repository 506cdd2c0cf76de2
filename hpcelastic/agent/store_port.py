"""The port of a round's store, bound before anybody is told of it, and the process that serves the store there.

An agent listens on a port of its own while it is ready, so nobody else can have it, and a worker that connects early
waits in the kernel's queue. Nothing is accepted here: the first connection makes the socket readable, and then a store
host is started that takes the socket over (`hpcelastic.worker.store_host`). A script that never asks for the store
costs nothing.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping

from hpcelastic.agent.warm import Order, shell_prefix
from hpcelastic.agent.workers import Means, Process

STORE_HOST = "hpcelastic.worker.store_host"

_BACKLOG = 4096
"""Workers that may wait for the store to be served; Linux cuts it to net.core.somaxconn, and the rest try again."""

_DEAF = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""SLURM signals every process of a task; workers may need their store until the last of them has ended."""

_BIRTH_PATIENCE = 2.0
"""Seconds in which the warm parent gives birth, if it is not busy: it has given birth to the workers before."""

_END_PATIENCE = 5.0
"""Seconds in which a process that was killed has ended, unless a filesystem that hangs holds it."""

Spawn = Callable[[int], Process]
"""Starts a store host on the listening socket with this descriptor."""


class StoreHost:
    """A running store host; readable when it has ended."""

    def __init__(self, process: Process) -> None:
        self.pid = process.pid
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)

    def fileno(self) -> int:
        return self._pidfd

    def reap(self) -> int:
        """Take in its end: its exit status, or minus the signal that ended it."""
        os.close(self._pidfd)
        return self._process.wait()

    def close(self) -> None:
        """End the host; returns once none of its code runs any more."""
        with contextlib.suppress(ProcessLookupError):  # killed with the workers, it may be reaped as their orphan
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if select.select([self._pidfd], [], [], _END_PATIENCE)[0]:
            self.reap()
        else:
            threading.Thread(target=self.reap, name="reaper of the store host", daemon=True).start()


class StorePort:
    """A TCP port on which we listen; readable when the first client has come."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.port: int = listener.getsockname()[1]

    @classmethod
    def open(cls, port: int = 0) -> "StorePort":
        """Listen on ``port``, a free one if that is 0, at all addresses of this node. OSError if it can't be had."""
        try:
            return cls(_listen(socket.AF_INET6, port))
        except OSError:  # a kernel without IPv6
            return cls(_listen(socket.AF_INET, port))

    def fileno(self) -> int:
        return self._listener.fileno()

    def serve(self, spawn: Spawn) -> StoreHost:
        """Hand the socket over to a store host; ours is closed, so that it is the only one to listen."""
        with self._listener:
            return StoreHost(spawn(self._listener.fileno()))

    def close(self) -> None:
        """Give the port back; who is connected is cut off."""
        self._listener.close()


def _listen(family: socket.AddressFamily, port: int) -> socket.socket:
    """A socket without SO_REUSEADDR, which would let others who have it bind our port until we listen.

    With a ``port`` that every round uses it is needed: connections of the last round may not have timed out.
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


def host_environment(common: Mapping[str, str]) -> dict[str, str]:
    """The environment of the store host: what its node's workers have in ``common``, and no GPU."""
    return {**common, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def spawner(means: Means, lease_from: float, environ: Mapping[str, str]) -> Spawn:
    """How a store host is started in a round that began under the lease of ``lease_from``; OSError if it can't be.

    It is a fork of the warm parent, which has torch at hand, else a fresh interpreter. Either way the guard knows it.
    """

    def spawn(listener: int) -> Process:
        process = _forked(means, lease_from, environ, listener)
        if process is None:
            process = _exec(means, environ, listener)
            means.guard.add(process.pid, lease_from)
        return process

    return spawn


def _forked(means: Means, lease_from: float, environ: Mapping[str, str], listener: int) -> Process | None:
    birth = means.warm.birth() if means.warm is not None else None
    if birth is None:
        return None
    process = None
    with contextlib.ExitStack() as stack:
        stack.callback(birth.cancel)
        if select.select([birth], [], [], _BIRTH_PATIENCE)[0]:
            process = birth.process()
        if process is None:
            return None
        means.guard.add(process.pid, lease_from)
        stack.pop_all()
    if birth.order(Order(["-m", STORE_HOST], environ, 1, 2, _DEAF, [listener])):
        return process
    means.guard.remove(process.pid)
    return None


def _exec(means: Means, environ: Mapping[str, str], listener: int) -> Process:
    return subprocess.Popen(
        [*shell_prefix(_DEAF), sys.executable, "-u", "-m", STORE_HOST, str(listener)],
        env=environ,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=(listener, *means.keep_fds),
    )
