"""Processes that the kernel has killed because of a lack of memory. The memory cgroup of the job counts them.

Such a process ends by SIGKILL and leaves no message. The kernel's log, if it may be read, has the process and its size.
Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst, and mm/oom_kill.c.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.health.kernel_log import kernel_log

_NO_LIMIT = 1 << 60
"""Bytes. A limit of cgroup v1 that is not set is a number near 2^63."""

_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the first namespace of process ids: PROC_PID_INIT_INO of the kernel."""

_KILLED = re.compile(
    r"\d+,\d+,(?P<stamp>\d+),.*Killed process (?P<pid>\d+) \((?P<name>.*?)\) total-vm:\d+kB, "
    r"anon-rss:(?P<anonymous>\d+)kB"
)
"""A record of /dev/kmsg: priority, number, microseconds since boot, flags; text."""


@dataclass(frozen=True)
class MemoryCgroup:
    """The memory cgroup of this process: its directory, and the names of its files."""

    directory: Path
    root: Path
    events: str
    limit: str

    def kills(self) -> int:
        """Return how many of its processes the kernel has killed because of a lack of memory."""
        for line in _lines(self.directory / self.events):
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdecimal():
                return int(count)
        return 0

    def limits(self) -> Iterator[int]:
        """Yield the limits in bytes that apply to it, from the innermost cgroup outwards."""
        for directory in (self.directory, *self.directory.parents):
            for line in _lines(directory / self.limit):
                if line.isdecimal() and int(line) < _NO_LIMIT:
                    yield int(line)
            if directory == self.root:
                return


def memory_cgroup(memberships: Sequence[str], root: Path) -> MemoryCgroup | None:
    """Return the memory cgroup of a process with the lines ``memberships`` of ``/proc/PID/cgroup``; None without one.

    ``root`` is the directory in which cgroups are mounted. In a container its own cgroup may be mounted there.
    """
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            names = root / "memory", "memory.oom_control", "memory.limit_in_bytes"
        elif not controllers:
            names = root, "memory.events", "memory.max"
        else:
            continue
        mount, events, limit = names
        for directory in (mount / path.lstrip("/"), mount):
            if (directory / events).is_file():
                return MemoryCgroup(directory, mount, events, limit)
    return None


class LackOfMemory:
    """Tells which processes of this job the kernel has killed since the last `begin`."""

    def __init__(
        self,
        cgroups: Path = Path("/sys/fs/cgroup"),
        memberships: Path = Path("/proc/self/cgroup"),
        log: Callable[[], Sequence[str]] = kernel_log,
        knows_pids: bool | None = None,
    ) -> None:
        self._cgroup, self._log = memory_cgroup(_lines(memberships), cgroups), log
        self._knows_pids = _has_pids_of_the_kernel() if knows_pids is None else knows_pids
        """Whether the kernel's log names processes by the numbers that they have here. In a container it does not."""

        self._before, self._since = 0, 0.0
        self.begin()

    def begin(self) -> None:
        """Forget the processes that were killed until now."""
        self._before, self._since = self._cgroup.kills() if self._cgroup else 0, time.monotonic()

    def describe(self, pid: int, exit_code: int) -> str:
        """Return what follows "killed by SIGKILL" or another end of a process; empty if memory is not the cause.

        ``exit_code`` is the negative number of the signal that ended the process.
        """
        if self._cgroup is None or self._cgroup.kills() <= self._before:
            return ""
        records = [found for record in self._log() if (found := _KILLED.match(record))]
        victims = {int(found["pid"]): found for found in records if int(found["stamp"]) / 1e6 >= self._since}
        limit = min(self._cgroup.limits(), default=None)
        reached = f"the limit of the job is {_format_size(limit)}" if limit else "the node has no memory left"
        if exit_code == -9 and not self._knows_pids:  # then this process is taken for the victim
            victims = {pid: next(iter(victims.values()))} if len(victims) == 1 else {}
        if exit_code == -9 and (pid in victims or not victims):
            used = f"; it used {_format_size(int(victims[pid]['anonymous']) << 10)}" if pid in victims else ""
            return f" by the kernel, because of a lack of memory: {reached}{used}"
        names = sorted({found["name"] for found in victims.values()})
        which = f" ({', '.join(names)})" if names else ""
        return f"; the kernel has killed another process of the job{which} because of a lack of memory: {reached}"


def _has_pids_of_the_kernel() -> bool:
    """Return whether this process is in the first namespace of process ids."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _format_size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
