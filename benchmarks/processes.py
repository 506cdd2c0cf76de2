"""Processes: descendants, signals, memory and CPU time. Processes are ended by their ids only."""

import contextlib
import os
import signal
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """Return all descendants of ``pid``, the deepest first."""
    try:
        tasks = [child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    except OSError:
        return []
    return [found for child in tasks for found in (*descendants(int(child)), int(child))]


def send(pids: Iterable[int], signum: int) -> None:
    """Send a signal to all of ``pids``. Processes that have ended are ignored."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def end_tree(pid: int) -> None:
    """SIGKILL ``pid`` and all its descendants, including those that start meanwhile."""
    send([pid], signal.SIGSTOP)
    send([*descendants(pid), pid], signal.SIGKILL)


@dataclass(frozen=True)
class Cost:
    """The cost of a process: memory in bytes, and seconds of CPU time since its start."""

    rss: int
    pss: int
    """Resident, each page shared by n processes counted as 1/n."""

    uss: int
    """Resident in this process alone."""

    cpu: float


def cost(pid: int) -> Cost:
    """Return the cost of a process. Raises OSError if it does not exist."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    uss = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return Cost(sizes["Rss"], sizes["Pss"], uss, cpu_time(pid))


def cpu_time(pid: int) -> float:
    """Return the CPU time of a process in seconds since its start. Raises OSError if it does not exist."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def free_port() -> int:
    """Return a port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(pid: int, port: int) -> bool:
    """Return whether ``pid`` has a socket that listens on ``port``."""
    inodes = {line[9] for line in _sockets() if line[3] == "0A" and int(line[1].rpartition(":")[2], 16) == port}
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{fd}").removeprefix("socket:[").rstrip("]") in inodes:
                    return True
    return False


def _sockets() -> list[list[str]]:
    tables = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
    return [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
