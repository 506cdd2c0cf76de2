"""The guard: a small process beside the agent that kills the workers when the agent cannot.

It kills them when the agent dies, for any reason. It also kills them when the agent's lease expires, because the shared
filesystem hangs or the agent is stopped. It reads no files except /proc, needs only the standard library, and runs as a
script of its own (``python -I -S guard_main.py MARKER``), so that it starts in milliseconds and stays small.

It reads lines from standard input:

* ``until SECONDS`` with every renewal of the lease, on CLOCK_BOOTTIME, which also counts while the machine sleeps.
* ``arm SECONDS`` before the first worker is started, with the start of the lease under which the agent decided to start
  it. If that lease has expired since, other nodes may have continued without this node.
* ``group PGID SECONDS`` after a worker has started, with the start of the same lease.
* ``gone PGID`` when a worker has ended.
* ``disarm`` when all processes that workers have started have ended.
* ``spare PID`` for the one process with the marker that lives as long as the agent; 0 for none.
* ``quit``. An end of input without ``quit`` means that the agent has died.

Before it kills for an expired lease it writes ``fenced`` to its output, and ``killed`` when all are killed.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping

MARKER = "HPCELASTIC_AGENT"
"""Environment variable that identifies an agent's descendants, in any session."""

LOCAL_RANK = "HPCELASTIC_LOCAL_RANK"
"""Environment variable with the number of a worker on its node."""


def boottime() -> float:
    """Return the seconds since the machine started, including the time that it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def marked_processes(marker: str, without: Mapping[int, int] | None = None) -> Iterator[int]:
    """Yield the processes of this machine that were started with ``marker`` in their environment, except zombies.

    ``without`` has local ranks of workers by process id. Processes in their sessions are not yielded, nor processes
    that were started with their local ranks in the environment.
    """
    wanted = f"{MARKER}={marker}".encode()
    sessions, ranks = set(without or {}), {f"{LOCAL_RANK}={rank}".encode() for rank in (without or {}).values()}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    environ = set(file.read().split(b"\0"))
                if wanted in environ and not environ & ranks and not (sessions and os.getsid(int(name)) in sessions):
                    yield int(name)
            except OSError:
                continue  # it has ended, or belongs to another user


def kill_group(pgid: int, signum: int) -> None:
    """Signal a whole process group. Do nothing if it has ended."""
    try:
        os.killpg(pgid, signum)
    except (ProcessLookupError, PermissionError):
        return


def kill_marked_processes(marker: str, *spare: int, keep: Mapping[int, int] | None = None) -> None:
    """SIGKILL every process with ``marker`` except ``spare``, including processes that are forked meanwhile.

    ``keep`` has the local ranks of workers that stay, by process id. Processes that these have started stay, too.
    """
    clean = 0
    for _ in range(20):
        found = [pid for pid in marked_processes(marker, keep) if pid not in spare]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        clean = 0 if found else clean + 1
        if clean == 2:  # one scan is not enough: during an exec a process has no environment
            return
        time.sleep(0.01)  # a killed process keeps its environment until it has ended


class _Watch:
    """The process groups that the guard watches, and the state of the lease."""

    def __init__(self, marker: str) -> None:
        self._marker = marker
        self._groups: set[int] = set()
        self._spared_pid = 0
        self._armed = False
        """True while workers may run, including workers that the agent started but could not report."""

        self._deadline = float("inf")
        self._expired_at = float("-inf")
        """When the lease last expired. This is not when the guard noticed it: without workers the guard does not check,
        and may notice it only after the renewal that made the lease valid again."""

    def timeout(self) -> float | None:
        """Return the seconds until the next check; None if only a message of the agent requires one."""
        return max(0.0, self._deadline - boottime()) if self._armed and self._deadline != float("inf") else None

    def check(self) -> None:
        """Fence the node if the lease has expired."""
        if boottime() >= self._deadline:
            self._expired_at = self._deadline
            if self._armed:
                self._fence()

    def handle_message(self, message: str, *arguments: str) -> None:
        """Handle a message. First check the lease as it was before: a renewal that comes too late has no effect."""
        self.check()
        if message == "until":
            self._deadline = float(arguments[0])
        elif message == "gone":
            self._groups.discard(int(arguments[0]))
        elif message == "spare":
            self._spared_pid = int(arguments[0])
        elif message == "disarm":
            self._armed = False
        elif message in ("arm", "group"):
            self._armed = True
            self._groups.update(map(int, arguments[:-1]))
            if self._expired_at >= float(arguments[-1]):
                self._fence()

    def kill(self, spare: int = 0) -> None:
        for pgid in self._groups:
            kill_group(pgid, signal.SIGKILL)
        kill_marked_processes(self._marker, spare)
        self._groups.clear()
        self._armed = False

    def _fence(self) -> None:
        _send("fenced")  # first, so that the agent never takes the kill for a failure
        self.kill(self._spared_pid)
        _send("killed")  # the agent waits for it: a worker that it starts earlier would be killed with the others


def _send(message: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the agent may be dead as well
        os.write(1, message.encode() + b"\n")


def main(marker: str) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)  # SLURM signals every process of a task; the agent decides
    watch, pending = _Watch(marker), b""
    while True:
        readable, _, _ = select.select([0], [], [], watch.timeout())
        watch.check()
        if not readable:
            continue
        data = os.read(0, 65536)
        if not data:
            watch.kill()
            return
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            if line == b"quit":
                return
            watch.handle_message(*line.decode().split())


if __name__ == "__main__":
    main(sys.argv[1])
