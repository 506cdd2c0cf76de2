"""A request for one process of the fork server, and the process.

A `SpawnRequest` turns readable when the spawned process exists, or when the request has failed. The process is a child
of the agent and waits for its command.
"""

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hpcelastic.agent.reaping import ResourceUsage, reap
from hpcelastic.ipc.descriptors import send_fds

UNUSABLE = "unusable "
"""Begins the fork server's message, followed by the reason, if no fork of it can be trusted."""

_COMMAND_TIMEOUT = 5.0
"""Seconds in which a spawned process reads its command. It waits for nothing else."""


@dataclass(frozen=True)
class WorkerCommand:
    """The command of a spawned process: ``python -u`` with ``args``, and the numbers of ``fds`` as last arguments."""

    args: Sequence[str]
    environ: Mapping[str, str]
    stdout: int
    stderr: int
    ignored: Sequence[str] = ()
    """Signals that the process ignores from the start."""

    fds: Sequence[int] = ()


class SpawnedProcess:
    """A forked child of the agent, with the methods of `subprocess.Popen` that the agent needs."""

    def __init__(self, pid: int, awaited_pids: set[int]) -> None:
        self.pid = pid
        self.usage: ResourceUsage | None = None
        self._awaited_pids = awaited_pids
        awaited_pids.add(pid)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Reap the process. Return its exit status, or minus the signal that ended it."""
        status, self.usage = reap(self.pid)
        self._awaited_pids.discard(self.pid)
        return status


class SpawnRequest:
    """A request for one process of the fork server. It turns readable when the process exists or the request failed.

    ``report_unusable`` is called with the reason if no fork of the server can be trusted.
    """

    def __init__(
        self, connection: socket.socket, awaited_pids: set[int], report_unusable: Callable[[str], None]
    ) -> None:
        self._connection = connection
        self._awaited_pids = awaited_pids
        self._report_unusable = report_unusable
        self._process: SpawnedProcess | None = None

    def fileno(self) -> int:
        return self._connection.fileno()

    def process(self) -> SpawnedProcess | None:
        """Return the spawned process, which waits for its command; None if there is none. Call it when readable."""
        if self._process is None:
            message = self._receive()
            if message.isdigit():
                self._process = SpawnedProcess(int(message), self._awaited_pids)
            elif message:
                self._report_unusable(message.removeprefix(UNUSABLE))
        return self._process

    @property
    def pid(self) -> int | None:
        """The id of the spawned process; None if it is not known yet. The request stays readable."""
        message = self._receive(socket.MSG_PEEK)
        return int(message) if message.isdigit() else None

    def _receive(self, flags: int = 0) -> str:
        with contextlib.suppress(OSError):
            return self._connection.recv(4096, socket.MSG_DONTWAIT | flags).decode().strip()
        return ""

    def send_command(self, command: WorkerCommand) -> bool:
        """Send the process its command. Return False if it has ended or does not read the command.

        In this case the request is cancelled, and no user code has run.
        """
        document = {"arguments": list(command.args), "environ": dict(command.environ), "ignored": list(command.ignored)}
        data, fds = json.dumps(document).encode() + b"\n", [command.stdout, command.stderr, *command.fds]
        assert self._process is not None
        try:
            with self._connection:
                self._connection.settimeout(_COMMAND_TIMEOUT)
                rest = data[send_fds(self._connection, data, fds) :]
                if rest:  # nothing may fail after the last byte, which ends the command, has been sent
                    self._connection.sendall(rest)
        except OSError:
            self.cancel()
            return False
        return True

    @property
    def failed(self) -> bool:
        """True once it is known that the process does not exist: it was not spawned, or it has ended."""
        poll = select.poll()
        poll.register(self._connection, select.POLLRDHUP)
        return bool(poll.poll(0))

    def expire(self) -> None:
        """Stop waiting. The request turns readable, with what has been received so far."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def cancel(self) -> None:
        """Kill and reap the process if it exists. A process that is still being spawned ends by itself."""
        process, self._process = self.process(), None
        self._connection.close()
        if process is not None:
            process.kill()
            process.wait()
