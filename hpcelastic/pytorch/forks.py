"""Workers that are forks of their agent's process, as with torch's ``start_method="fork"``."""

import contextlib
import errno
import os
import signal
import time

from hpcelastic.agent.guard import Guard
from hpcelastic.agent.guard_main import kill_group

_KILL_CHECKS, _KILL_INTERVAL = 20, 0.01
"""Number of checks whether killed workers have ended, and the seconds between two of them."""


class ForkedWorkers:
    """The process groups of the workers that are forks of this process.

    A fork has no mark that other processes can see: /proc shows the environment with which its program was started. So
    each fork moves to a process group of its own and reports that to the guard and to this object. `report` is called
    in the fork, and the other methods in the agent's thread.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._groups: set[int] = set()
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def report(self) -> None:
        """Report this process, which was forked a moment ago."""
        os.setpgid(0, 0)
        os.write(self._writer, b"%d\n" % os.getpid())
        self._guard.report_fork()

    def update(self) -> None:
        """Let the guard watch the workers that have been reported, and no group that has ended."""
        with contextlib.suppress(BlockingIOError):
            for pgid in map(int, os.read(self._reader, 65536).split()):
                self._groups.add(pgid)
                self._guard.add_fork(pgid)  # again: the guard to which the fork reported may have died
        for pgid in [pgid for pgid in self._groups if not _exists(pgid)]:
            self._groups.remove(pgid)
            self._guard.remove(pgid)

    def kill(self) -> None:
        """Kill the workers and the processes in their groups, and wait a moment for their end."""
        self.update()
        for pgid in self._groups:
            kill_group(pgid, signal.SIGKILL)
        for _ in range(_KILL_CHECKS):
            self.update()
            if not self._groups:
                return
            time.sleep(_KILL_INTERVAL)

    def close(self) -> None:
        """Close the pipe of the reports."""
        os.close(self._reader)
        os.close(self._writer)


def _exists(pgid: int) -> bool:
    try:
        os.killpg(pgid, 0)
    except OSError as error:
        return error.errno != errno.ESRCH
    return True
