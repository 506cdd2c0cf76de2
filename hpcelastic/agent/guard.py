"""The guard: a small process beside the agent that kills the workers when the agent can't.

It does so when the agent dies, whatever killed it, and when the agent's lease runs out: because the shared filesystem
hangs, or the agent is stopped. It touches no file but /proc, needs nothing but the standard library, and runs as a
script of its own (``python -I -S guard.py MARKER``), so that it starts in milliseconds and stays small.

It reads lines from standard input: ``until SECONDS`` with every renewal of the lease (on CLOCK_BOOTTIME, which also
counts while the machine sleeps); ``arm SECONDS`` before the first worker is started, with the start of the lease under
which the agent decided so, for if that lease has run out since, others may have gone on without this node; ``group
PGID SECONDS`` likewise as a worker has started; ``gone PGID`` as a worker ends; ``disarm`` once nothing that workers
have started is left; ``spare PID`` of the one process that carries the mark and is to live as long as the agent does, 0
for none; and ``quit``. An end of input without ``quit`` is the agent's death. Before it kills for a lease that has run
out it writes ``fenced`` to its output, and ``killed`` when that is done.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator

MARKER = "HPCELASTIC_AGENT"
"""Environment variable by which an agent's descendants are known, wherever they hide."""


def boottime() -> float:
    """Seconds since the machine started, those that it slept included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def marked(marker: str) -> Iterator[int]:
    """Processes of this machine, zombies aside, that were started with ``marker`` in their environment."""
    wanted = f"{MARKER}={marker}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0"):
                        yield int(name)
            except OSError:
                continue  # gone, or another user's


def kill_group(pgid: int, signum: int) -> None:
    """Signal a whole process group; fine if it has gone."""
    try:
        os.killpg(pgid, signum)
    except (ProcessLookupError, PermissionError):
        return


def kill_marked(marker: str, *spare: int) -> None:
    """SIGKILL every process with ``marker``, those included that are born meanwhile, but for those in ``spare``."""
    clean = 0
    for _ in range(20):
        found = [pid for pid in marked(marker) if pid not in spare]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        clean = 0 if found else clean + 1
        if clean == 2:  # once proves nothing: in the middle of an exec a process has no environment
            return
        time.sleep(0.01)  # a killed process keeps its environment until it has ended


class _Watch:
    """What the guard watches over, and whether the lease holds."""

    def __init__(self, marker: str) -> None:
        self._marker = marker
        self._groups: set[int] = set()
        self._spared = 0
        self._armed = False
        """True while there may be workers, also such as the agent was stopped on its way to tell of."""

        self._until = float("inf")
        self._lapsed = float("-inf")
        """When the lease last ran out; not when that was seen, for without workers nobody looks, and then it may be
        seen after the renewal that ended the lapse has begun."""

    def patience(self) -> float | None:
        """Seconds until there is something to do; None if that is for the agent to say."""
        return max(0.0, self._until - boottime()) if self._armed and self._until != float("inf") else None

    def check(self) -> None:
        """Fence the node if the lease has run out."""
        if boottime() >= self._until:
            self._lapsed = self._until
            if self._armed:
                self._fence()

    def take(self, word: str, *arguments: str) -> None:
        """Act on a message, on the lease as it was before it: a renewal that comes too late renews nothing."""
        self.check()
        if word == "until":
            self._until = float(arguments[0])
        elif word == "gone":
            self._groups.discard(int(arguments[0]))
        elif word == "spare":
            self._spared = int(arguments[0])
        elif word == "disarm":
            self._armed = False
        elif word in ("arm", "group"):
            self._armed = True
            self._groups.update(map(int, arguments[:-1]))
            if self._lapsed >= float(arguments[-1]):
                self._fence()

    def kill(self, spare: int = 0) -> None:
        for pgid in self._groups:
            kill_group(pgid, signal.SIGKILL)
        kill_marked(self._marker, spare)
        self._groups.clear()
        self._armed = False

    def _fence(self) -> None:
        _tell("fenced")  # first, so that the agent never takes the kill for a failure
        self.kill(self._spared)
        _tell("killed")  # the agent waits for it: a worker that it starts earlier would be killed with the others


def _tell(word: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the agent may be dead as well
        os.write(1, word.encode() + b"\n")


def main(marker: str) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)  # SLURM signals every process of a task; the agent decides
    watch, pending = _Watch(marker), b""
    while True:
        readable, _, _ = select.select([0], [], [], watch.patience())
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
            watch.take(*line.decode().split())


if __name__ == "__main__":
    main(sys.argv[1])
