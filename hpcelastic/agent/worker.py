"""One worker process, and the resources with which an agent starts workers."""

import os
import signal
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hpcelastic.agent.fork_server import ForkServer
from hpcelastic.agent.guard import Guard
from hpcelastic.agent.reaping import ResourceUsage, reap
from hpcelastic.agent.worker_channels import WorkerChannels
from hpcelastic.ipc.worker_channel import WorkerChannel


class Process(Protocol):
    """A child of the agent, started by fork or by exec."""

    pid: int
    usage: ResourceUsage | None
    """The resources that it has used, once it is reaped; None if other code has reaped it."""

    def wait(self) -> int:
        """Reap the process. Return its exit status, or minus the signal that ended it."""


class FreshProcess:
    """A process that was started by exec."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.pid = process.pid
        self.usage: ResourceUsage | None = None

    def wait(self) -> int:
        """Reap the process. Return its exit status, or minus the signal that ended it."""
        if self._process.returncode is None:
            self._process.returncode, self.usage = reap(self.pid)
        return self._process.returncode


def pidfd_of(process: Process) -> int:
    """Return a new descriptor of a process that was just started. Raises OSError if there is none left.

    The process is killed then, because nothing would notice its end.
    """
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        os.kill(process.pid, signal.SIGKILL)  # its id is not reused before it is reaped
        process.wait()
        raise


@dataclass(frozen=True)
class WorkerResources:
    """The resources with which an agent starts workers."""

    guard: Guard
    fork_server: ForkServer | None = None
    keep_fds: tuple[int, ...] = ()
    """Descriptors that every worker inherits."""

    processors: Sequence[Collection[int]] = ()
    """Processors that each worker may use, by local rank; empty for all that the agent may use."""

    channels: WorkerChannels | None = None
    """The channels to workers that can be parked; None if none can."""

    outside: dict[int, int] = field(default_factory=dict)
    """The local ranks of processes that are in no round, because they are parked or start early, by process id."""

    def channel(self, pid: int) -> WorkerChannel | None:
        """Return the channel of a worker; None if the worker cannot be parked."""
        return None if self.channels is None else self.channels.get(pid)

    def processors_of(self, local_rank: int) -> Collection[int]:
        return self.processors[local_rank] if self.processors else ()


@dataclass(frozen=True)
class Worker:
    """One worker process; ``pidfd`` turns readable when it has ended."""

    rank: int
    local_rank: int
    process: Process
    pidfd: int
    error_file: Path
    log: Path | None
    """The file of its standard error; None if that goes to no file."""
