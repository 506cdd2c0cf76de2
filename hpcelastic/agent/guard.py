"""The agent's side of the pipe to its guard."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType

from hpcelastic.agent import guard_main


class Guard:
    """A running guard process; see `hpcelastic.agent.guard_main`. Methods may be called from any thread."""

    def __init__(self, marker: str, keep_fds: Sequence[int] = ()) -> None:
        self._marker = marker
        self._keep_fds = keep_fds
        self._groups: dict[int, float] = {}
        self._spared_pid = 0
        self._armed: float | None = None
        self._deadline: float | None = None
        self._lock = threading.Lock()
        self._process = self._spawn()

    def __enter__(self) -> "Guard":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the guard. After an ``error`` it kills the workers that may be left, as if the agent had been killed."""
        with self._lock:
            if error is None:
                self._send("quit")
            self._close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Readable when the guard has fenced the node, or has died."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def handle_message(self) -> bool:
        """Read the guard's message. Return True if the guard has killed the workers.

        Return False if the guard itself has died and was replaced.
        """
        data = chunk = os.read(self.fileno(), 4096)
        while chunk and not data.endswith(b"killed\n"):  # a worker started before that would be killed with the others
            chunk = os.read(self.fileno(), 4096)
            data += chunk
        if data:
            return True
        with self._lock:
            self._close()
            self._process = self._spawn()
            self._send(f"spare {self._spared_pid}")
            if self._deadline is not None:
                self._send(f"until {self._deadline}")
            if self._armed is not None:
                self._send(f"arm {self._armed}")
            for pgid, lease_from in self._groups.items():
                self._send(f"group {pgid} {lease_from}")
        return False

    def arm(self, lease_from: float) -> None:
        """Report that workers will be started, under the lease that began at ``lease_from``."""
        with self._lock:
            self._armed = lease_from
            self._send(f"arm {lease_from}")

    def disarm(self) -> None:
        """Report that all processes that workers have started have ended."""
        with self._lock:
            self._armed = None
            self._send("disarm")

    def add(self, pgid: int, lease_from: float) -> None:
        """Watch a process group that was started under the lease that began at ``lease_from``."""
        with self._lock:
            self._groups[pgid] = lease_from
            self._send(f"group {pgid} {lease_from}")

    def report_fork(self) -> None:
        """Watch the process group of this process, a fork of the agent, and close the fork's copy of the pipe.

        The guard learns that the agent has died when no process has the pipe. The fork must not use the guard again.
        """
        assert self._process.stdin is not None
        # Another thread of the agent may have held the lock, or may have closed the pipe, at the moment of the fork.
        with contextlib.suppress(OSError, ValueError):
            pipe = self._process.stdin.fileno()
            try:
                os.write(pipe, f"group {os.getpid()} {self._armed}\n".encode())
            finally:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, pipe, inheritable=False)  # the number stays in use: the fork may close it once more
                os.close(null)

    def add_fork(self, pgid: int) -> None:
        """Watch the process group of a fork of the agent. It has started under the lease of the last `arm`."""
        if self._armed is not None:
            self.add(pgid, self._armed)

    def remove(self, pgid: int) -> None:
        """Stop watching a process group, because it has ended."""
        with self._lock:
            self._groups.pop(pgid, None)
            self._send(f"gone {pgid}")

    def spare(self, pid: int) -> None:
        """Exclude one process with the marker when the lease expires: it lives as long as the agent. 0 for none."""
        with self._lock:
            self._spared_pid = pid
            self._send(f"spare {pid}")

    def set_deadline(self, deadline: float) -> None:
        """Set the time when the lease expires, in seconds of `guard_main.boottime`."""
        with self._lock:
            self._deadline = deadline
            self._send(f"until {deadline}")

    def _spawn(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-I", "-S", guard_main.__file__, self._marker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # SLURM waits for every process that holds a task's output open
            start_new_session=True,
            pass_fds=self._keep_fds,
        )

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # it died, `handle_message` replaces it; or it is closed
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def _close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
