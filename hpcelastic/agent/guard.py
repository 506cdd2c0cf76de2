"""The guard: a small process beside the agent that kills the workers when the agent can't.

It does so when the agent dies, whatever killed it, and when the agent's lease runs out: because the shared filesystem
hangs, or the agent is stopped. It touches no file but /proc, needs nothing but the standard library, and runs as a
script of its own (``python -I -S guard.py MARKER``), so that it starts in milliseconds and stays small.

It reads lines from standard input: ``group PGID`` and ``gone PGID`` as workers start and end, ``until SECONDS`` (on
CLOCK_BOOTTIME, which also counts while the machine sleeps) with every renewal of the lease, and ``quit``. An end of
input without ``quit`` is the agent's death. Before it kills for an expired lease it writes ``fenced`` to its output,
and ``killed`` when that is done.
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


def kill_marked(marker: str) -> None:
    """SIGKILL every process with ``marker``, those included that are born meanwhile; fine if there is none."""
    clean = 0
    for _ in range(20):
        found = list(marked(marker))
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        clean = 0 if found else clean + 1
        if clean == 2:  # once proves nothing: in the middle of an exec a process has no environment
            return
        time.sleep(0.01)  # a killed process keeps its environment until it has ended


def _kill(groups: set[int], marker: str) -> None:
    for pgid in groups:
        kill_group(pgid, signal.SIGKILL)
    kill_marked(marker)


def _tell(word: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the agent may be dead as well
        os.write(1, word.encode() + b"\n")


def main(marker: str) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)  # SLURM signals every process of a task; the agent decides
    groups: set[int] = set()
    until, pending = float("inf"), b""
    while True:
        left = max(0.0, until - boottime()) if groups and until != float("inf") else None
        readable, _, _ = select.select([0], [], [], left)
        # Before any message: if the whole node slept, a renewal may be waiting that came too late.
        if groups and boottime() >= until:
            _tell("fenced")  # first, so that the agent never takes the kill for a failure
            _kill(groups, marker)
            _tell("killed")  # the agent waits for it: a worker that it starts earlier would be killed with the others
            groups.clear()
        if not readable:
            continue
        data = os.read(0, 65536)
        if not data:
            _kill(groups, marker)
            return
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            word, _, argument = line.decode().partition(" ")
            if word == "quit":
                return
            if word == "until":
                until = float(argument)
            elif word == "group":
                groups.add(int(argument))
            elif word == "gone":
                groups.discard(int(argument))


if __name__ == "__main__":
    main(sys.argv[1])
