"""The processor time that a process and its descendants use, or would use if they got a processor."""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

_BUSY = 0.1
"""The part of a processor that a process and its descendants use or wait for at least, while they work. A rank that
waits for another rank needs almost nothing."""


class Usage(NamedTuple):
    """The use of resources by a process and all processes below it."""

    seconds: float
    """The processor time, and the time for which main threads were ready to run and had no processor, until they last
    got one."""

    ready: bool
    """Whether the main thread of one of them runs, or is ready to run."""

    children: int
    """Number of processes below it that have not ended."""

    def works_since(self, before: "Usage", seconds: float) -> bool:
        """Return whether they work, or would if they got a processor, by their use ``seconds`` ago."""
        return (before.ready and self.ready) or self.seconds - before.seconds >= _BUSY * seconds


def usage_of(pid: int) -> Usage:
    """Return the use by a process and its descendants until now."""
    ticks, children, waits, ready = 0, 0, 0.0, False
    for each in (pid, *_descendants(pid)):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # proc_pid_stat(5): utime, stime
            children += each != pid and fields[0] != "Z"
            ready |= fields[0] == "R"
        waits += _run_delay(each)
    return Usage(ticks / os.sysconf("SC_CLK_TCK") + waits, ready, children)


def _run_delay(pid: int) -> float:
    """Return the seconds for which the main thread of a process was ready to run and had no processor.

    0 if the kernel does not count it. Source: Documentation/scheduler/sched-stats.rst of Linux.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _descendants(pid: int) -> list[int]:
    children = _children(pid)
    return children + [each for child in children for each in _descendants(child)]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found
