"""The timers that workers set with ``torch.distributed.elastic.timer``.

When a timer expires, the agent sends the process that has set it the signal that the timer names. The agent sends
SIGKILL ``workers.stop_grace`` seconds later if the process has neither ended nor released the timer. A process has
timers only if it is a worker of the running group or a descendant of one. All other requests are ignored.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hpcelastic.agent.guard_main import boottime
from hpcelastic.agent.timer_pipe import TimerPipe, TimerRequest, parse_request
from hpcelastic.agent.worker import Worker
from hpcelastic.agent.workers import WorkerGroup
from hpcelastic.ipc.readiness import readable
from hpcelastic.protocol.events import TimerExpired

_MAX_WAIT = 3600.0
"""Seconds of the longest wait. A timer may expire in millions of years, for which select(2) cannot wait."""

_MAX_ANCESTORS = 100
_MAX_SCOPE = 100
"""Characters of a timer's name in a message."""

_MAX_REASON = 200


@dataclass(frozen=True)
class _Timer:
    deadline: float
    """When it expires, in seconds of `boottime`."""

    signal: int


@dataclass(frozen=True)
class _TimedProcess:
    """A process that has set timers. The pidfd identifies it even if another process gets the same process id."""

    pid: int
    pidfd: int
    worker: Worker
    """The worker that is the process or an ancestor of it."""

    timers: dict[str, _Timer] = field(default_factory=dict)
    """The timers by name."""


class FileTimers:
    """The timers of one worker group after the other. Without a ``pipe`` there are none.

    ``grace`` is the time in seconds between the signal of a timer and SIGKILL. ``log`` receives an event for each timer
    that expires, and ``report`` receives lines for people.
    """

    def __init__(
        self,
        pipe: TimerPipe | None,
        grace: float,
        log: Callable[[TimerExpired], None],
        report: Callable[[str], None],
    ) -> None:
        self._pipe, self._grace, self._log, self._report = pipe, grace, log, report
        self._group: WorkerGroup | None = None
        self._processes: dict[int, _TimedProcess] = {}
        self._expired: dict[int, str] = {}
        """The name of the timer that has expired last, by the rank of the worker."""

        self._reported_ignored = False

    @property
    def path(self) -> str:
        """The path of the pipe; empty if there is none."""
        return str(self._pipe.path) if self._pipe is not None else ""

    def begin(self, group: WorkerGroup) -> None:
        """Accept the timers of the processes of ``group``."""
        self._group = group

    def end(self) -> None:
        """Drop all timers: the group has ended, or is being stopped."""
        for process in list(self._processes.values()):
            self._forget(process)
        self._expired.clear()
        self._group = None

    def close(self) -> None:
        """Drop all timers and remove the pipe."""
        self.end()
        if self._pipe is not None:
            self._pipe.close()

    def seconds_left(self) -> float | None:
        """Return the seconds until a timer may expire; None if there is no timer."""
        deadlines = [timer.deadline for process in self._processes.values() for timer in process.timers.values()]
        return min(_MAX_WAIT, max(0.0, min(deadlines) - boottime())) if deadlines else None

    def describe_expired(self, worker: Worker) -> str:
        """Return a remark for the failure of ``worker`` if a timer of it has expired, otherwise an empty text."""
        scope = self._expired.get(worker.rank)
        return "" if scope is None else f" (the timer {_shown(scope)} had expired)"

    # Events

    def receive(self) -> None:
        """Read the requests in the pipe."""
        for line in self._pipe.read() if self._pipe is not None else ():
            try:
                request = parse_request(line)
            except ValueError as error:
                self._report_ignored(str(error))
                continue
            if request.expiration_time < 0:
                self._release(request)
            else:
                self._set(request)

    def expire(self) -> None:
        """Send the signals of the timers that have expired."""
        if self.seconds_left() != 0.0:
            return
        self.receive()  # a timer may have been released since
        now = boottime()
        expired = [
            (timer.deadline, process.pid, scope)
            for process in self._processes.values()
            for scope, timer in process.timers.items()
            if timer.deadline <= now
        ]
        for _, pid, scope in sorted(expired):
            if pid in self._processes:  # not killed because of another timer
                self._expire(self._processes[pid], scope)

    def _expire(self, process: _TimedProcess, scope: str) -> None:
        if _ended(process.pidfd):
            self._forget(process)
            return
        assert self._group is not None
        signum, rank = process.timers.pop(scope).signal, process.worker.rank
        name = signal.Signals(signum).name if signum > 0 else None
        self._log(TimerExpired(round=self._group.part.round, rank=rank, pid=process.pid, scope=scope, sent=name))
        what = f"sending {name} to process {process.pid}" if name else "it asks for no signal"
        self._report(f"rank {rank}: the timer {_shown(scope)} has expired; {what}")
        if signum <= 0:
            self._forget_without_timers(process)
            return
        self._expired[rank] = scope
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(process.pidfd, signum)
        if signum == signal.SIGKILL:
            self._forget(process)
        else:
            process.timers[scope] = _Timer(boottime() + self._grace, signal.SIGKILL)

    def _set(self, request: TimerRequest) -> None:
        process = self._find(request.pid)
        if process is not None:
            seconds = request.expiration_time - time.time()
            process.timers[request.scope_id] = _Timer(boottime() + seconds, request.signal)

    def _release(self, request: TimerRequest) -> None:
        process = self._processes.get(request.pid)
        if process is not None:
            process.timers.pop(request.scope_id, None)
            self._forget_without_timers(process)

    def _find(self, pid: int) -> _TimedProcess | None:
        """Return the process ``pid``; None if it has ended or does not descend from a worker."""
        known = self._processes.get(pid)
        if known is not None and not _ended(known.pidfd):
            return known
        if known is not None:
            self._forget(known)
        try:
            pidfd = os.pidfd_open(pid)
        except (OSError, OverflowError):
            return None
        worker, ended = self._worker_of(pid), _ended(pidfd)  # in this order, or the ancestors may be another process's
        if worker is not None and not ended:
            process = self._processes[pid] = _TimedProcess(pid, pidfd, worker)
            return process
        os.close(pidfd)
        if not ended:
            self._report_ignored(f"process {pid} does not descend from a worker of this node")
        return None

    def _worker_of(self, pid: int) -> Worker | None:
        """Return the worker that is the process ``pid`` or an ancestor of it; None if there is none."""
        running = self._group.running.values() if self._group is not None else ()
        workers = {worker.process.pid: worker for worker in running}
        for _ in range(_MAX_ANCESTORS):
            if pid in workers or pid <= 1:
                break
            pid = _parent(pid)
        return workers.get(pid)

    def _forget(self, process: _TimedProcess) -> None:
        del self._processes[process.pid]
        os.close(process.pidfd)

    def _forget_without_timers(self, process: _TimedProcess) -> None:
        if not process.timers:
            self._forget(process)

    def _report_ignored(self, reason: str) -> None:
        """Report the first request that is ignored."""
        if not self._reported_ignored:
            self._reported_ignored = True
            self._report(f"a request for a timer is ignored: {reason[:_MAX_REASON]}")


def _ended(pidfd: int) -> bool:
    return bool(readable([pidfd], 0))


def _parent(pid: int) -> int:
    """Return the parent of a process; 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _shown(scope: str) -> str:
    return repr(scope if len(scope) <= _MAX_SCOPE else scope[: _MAX_SCOPE - 1] + "…")
