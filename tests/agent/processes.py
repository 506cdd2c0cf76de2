"""Real processes for tests. They are watched by pidfd and always ended by process id."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hpcelastic.agent.guard_main import MARKER, kill_marked_processes

TIMEOUT = 60.0
"""Time limit for each expected event in seconds."""


class Watched:
    """A process that may be another process's child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def ends(self, within: float = TIMEOUT) -> bool:
        """Wait for its end. Return False if it still exists after ``within`` seconds."""
        return bool(select.select([self._fd], [], [], within)[0])

    @property
    def alive(self) -> bool:
        return not self.ends(within=0.0)

    def close(self) -> None:
        """Kill it if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        os.close(self._fd)


@contextlib.contextmanager
def watched(*pids: int) -> Iterator[list[Watched]]:
    with contextlib.ExitStack() as stack:
        found = [Watched(pid) for pid in pids]
        for process in found:
            stack.callback(process.close)
        yield found


@contextlib.contextmanager
def sleeper(marker: str | None = None, *, script: str = "exec sleep 300") -> Iterator["subprocess.Popen[bytes]"]:
    """A shell script in its own session, with ``marker`` in its environment. It is killed at the end."""
    env = {"PATH": os.environ["PATH"]} | ({MARKER: marker} if marker else {})
    process = subprocess.Popen(["sh", "-c", script], env=env, start_new_session=True, stdout=subprocess.PIPE)
    try:
        assert not script.startswith("exec sleep") or settled(process.pid)
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        if marker:
            kill_marked_processes(marker)


def settled(pid: int) -> bool:
    """Wait until ``pid`` has become ``sleep``: in the middle of an exec a process has no environment."""
    return eventually(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"))


def waits(pid: int) -> bool:
    """Return True if ``pid`` waits in the kernel, or is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ST"


def eventually(condition: Callable[[], bool]) -> bool:
    """Poll until ``condition`` is true. Return False if it does not become true in time."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def may_trace() -> bool:
    """Return whether this user may trace any own process; see Documentation/admin-guide/LSM/Yama.rst of Linux."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    return os.geteuid() == 0 or not scope.exists() or scope.read_text().strip() == "0"
