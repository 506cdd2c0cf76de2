"""The end of a child process, and the resources that it has used."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class ResourceUsage:
    """The resources that a process has used. Source: getrusage(2)."""

    cpu_seconds: float
    peak_memory: int
    """The largest part of the main memory that it has used, in bytes."""


def reap(pid: int) -> tuple[int, ResourceUsage | None]:
    """Wait for the end of a child. Return its exit status, or minus the signal that ended it, and its resources.

    If other code has reaped it, the status is 255, because this must not count as a success.
    """
    try:
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:
        return 255, None
    used = ResourceUsage(round(usage.ru_utime + usage.ru_stime, 3), usage.ru_maxrss * 1024)
    return os.waitstatus_to_exitcode(status), used
