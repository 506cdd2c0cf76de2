"""The agent's end of the line to its guard."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType

from hpcelastic.agent import guard


class Guard:
    """A running guard process; see `hpcelastic.agent.guard`. Methods may be called from any thread."""

    def __init__(self, marker: str, keep_fds: Sequence[int] = ()) -> None:
        self._marker = marker
        self._keep_fds = keep_fds
        self._groups: dict[int, float] = {}
        self._spared = 0
        self._armed: float | None = None
        self._until: float | None = None
        self._lock = threading.Lock()
        self._process = self._spawn()

    def __enter__(self) -> "Guard":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._tell("quit")
            self._close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Readable when the guard has fenced the node, or has died."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def heard(self) -> bool:
        """Take the message in; True if the guard has killed the workers, False if it died itself and was replaced."""
        data = chunk = os.read(self.fileno(), 4096)
        while chunk and not data.endswith(b"killed\n"):  # a worker started before that would be killed with the others
            chunk = os.read(self.fileno(), 4096)
            data += chunk
        if data:
            return True
        with self._lock:
            self._close()
            self._process = self._spawn()
            self._tell(f"spare {self._spared}")
            if self._until is not None:
                self._tell(f"until {self._until}")
            if self._armed is not None:
                self._tell(f"arm {self._armed}")
            for pgid, lease_from in self._groups.items():
                self._tell(f"group {pgid} {lease_from}")
        return False

    def arm(self, lease_from: float) -> None:
        """Workers are about to be started, under the lease that began at ``lease_from``."""
        with self._lock:
            self._armed = lease_from
            self._tell(f"arm {lease_from}")

    def disarm(self) -> None:
        """Nothing that workers have started is left."""
        with self._lock:
            self._armed = None
            self._tell("disarm")

    def add(self, pgid: int, lease_from: float) -> None:
        """Watch over a process group that was started under the lease that began at ``lease_from``."""
        with self._lock:
            self._groups[pgid] = lease_from
            self._tell(f"group {pgid} {lease_from}")

    def remove(self, pgid: int) -> None:
        """A process group has ended."""
        with self._lock:
            self._groups.pop(pgid, None)
            self._tell(f"gone {pgid}")

    def spare(self, pid: int) -> None:
        """A process that carries the mark and lives as long as the agent, however the lease; 0 for none."""
        with self._lock:
            self._spared = pid
            self._tell(f"spare {pid}")

    def until(self, deadline: float) -> None:
        """The lease holds until ``deadline``, in seconds of `guard.boottime`."""
        with self._lock:
            self._until = deadline
            self._tell(f"until {deadline}")

    def _spawn(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, self._marker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # SLURM waits for whoever holds a task's output open
            start_new_session=True,
            pass_fds=self._keep_fds,
        )

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # it has died, `heard` replaces it; or it is closed
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def _close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
