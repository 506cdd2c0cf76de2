"""The worker group of one node in one round: started, watched and ended together."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from hpcelastic.agent.environment import RunFacts, worker_environment
from hpcelastic.agent.guard import kill_group, kill_marked
from hpcelastic.agent.guarded import Guard
from hpcelastic.agent.output import Tee
from hpcelastic.agent.settings import AgentSettings, Entrypoint, Streams
from hpcelastic.errors import StoreError
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.store import files
from hpcelastic.store.bounded import bounded

FUNCTION_RUNNER = "hpcelastic.worker"

_KILL_PATIENCE = 5.0
"""Seconds in which a process that was killed has ended, unless a filesystem that hangs holds it."""

_LOGS_PATIENCE = 5.0
"""Seconds that the shared filesystem may take to open a round's logs."""

_Logs: TypeAlias = dict[Path, IO[bytes]]


@dataclass(frozen=True)
class Worker:
    """One worker process; ``pidfd`` turns readable when it has ended."""

    rank: int
    local_rank: int
    process: "subprocess.Popen[bytes]"
    pidfd: int
    error_file: Path
    log: Path | None
    """Where its standard error goes, if to a file."""


def command(entrypoint: Entrypoint, forwarded: Collection[str] = ()) -> list[str]:
    """The command line of a worker.

    SLURM may signal every process of a job, not the agent alone, and a bare user signal kills; so those that are not
    ``forwarded`` are ignored from the start, which a handler of the script overrides. A shell does it on its way to
    exec: Python could only before a fork, for the agent as well. And who starts a process waits until it has been
    exec'd, which a shell of this machine is at once, and a Python on a shared filesystem that hangs is not.
    """
    ignored = " ".join(name.removeprefix("SIG") for name in ("SIGUSR1", "SIGUSR2") if name not in forwarded)
    trap = f"trap '' {ignored}; " if ignored else ""
    python = ["/bin/sh", "-c", f'{trap}exec "$@"', "sh", sys.executable, "-u"]
    args = [str(arg) for arg in entrypoint.args]
    if entrypoint.script:
        return [*python, entrypoint.script, *args]
    if entrypoint.module:
        return [*python, "-m", entrypoint.module, *args]
    return [*python, "-m", FUNCTION_RUNNER, str(entrypoint.function), json.dumps(entrypoint.args)]


class WorkerGroup:
    """The running workers of ``part``."""

    def __init__(self, part: Assignment, settings: AgentSettings, run: RunFacts, guard: Guard) -> None:
        self.part = part
        self._settings = settings
        self._run = run
        self._guard = guard
        self._tee = Tee()
        self.running: dict[int, Worker] = {}
        """Workers that have not been reaped, by pidfd."""

    def start(self, environ: Mapping[str, str], lease_from: float) -> None:
        """Start all workers, under the lease that began at ``lease_from``; none is left if one can't be started."""
        with contextlib.ExitStack() as stack:
            logs = self._logs()
            for log in logs.values():
                stack.enter_context(log)
            self._guard.arm(lease_from)
            try:
                for local_rank in range(self.part.local_world_size):
                    worker = self._start_one(local_rank, environ, lease_from, logs)
                    self.running[worker.pidfd] = worker
            except BaseException:
                self.stop(grace=0.0)
                raise
        self._tee.start()

    def reap(self, pidfd: int) -> tuple[Worker, int]:
        """Take in the end of a worker: its exit status, or minus the signal that ended it."""
        worker = self.running.pop(pidfd)
        kill_group(worker.process.pid, signal.SIGKILL)  # what it left behind; its id is its own until it is reaped
        exit_code = worker.process.wait()
        os.close(pidfd)
        self._guard.remove(worker.process.pid)
        return worker, exit_code

    def stop(self, grace: float) -> list[Worker]:
        """End all workers and what they have started: SIGTERM, ``grace`` seconds, SIGKILL; return once all are gone.

        Returned are those that a filesystem which hangs still holds in a call, or in its clean-up after them. None of
        their own code runs again, so who waits for their end need not wait for these.
        """
        self.send(signal.SIGTERM)
        self._await(time.monotonic() + grace)
        self.kill()
        held = [self.running.pop(pidfd) for pidfd in self._await(time.monotonic() + _KILL_PATIENCE)]
        for pidfd in list(self.running):
            self.reap(pidfd)
        for worker in held:
            os.close(worker.pidfd)
            threading.Thread(target=self._reap_late, args=(worker,), name=f"reaper {worker.rank}", daemon=True).start()
        self._guard.disarm()
        self._tee.stop()
        return held

    def kill(self) -> None:
        """SIGKILL all workers at once and everything that they have started, in whatever session."""
        self.send(signal.SIGKILL)
        kill_marked(self._run.node)

    def send(self, signum: int) -> None:
        """Signal every worker's process group."""
        for worker in list(self.running.values()):
            kill_group(worker.process.pid, signum)

    def finish(self) -> None:
        """All workers have ended by themselves: end what they left behind."""
        kill_marked(self._run.node)
        self._guard.disarm()
        self._tee.stop()

    def _reap_late(self, worker: Worker) -> None:
        worker.process.wait()
        self._guard.remove(worker.process.pid)

    def _await(self, deadline: float) -> set[int]:
        """Until every worker has ended or ``deadline`` has come; none is reaped, so that their ids stay theirs.

        Returned are the pidfds of those that have not ended.
        """
        alive = set(self.running)
        while alive:
            ended, _, _ = select.select(list(alive), [], [], max(0.0, deadline - time.monotonic()))
            if not ended:
                break
            alive.difference_update(ended)
        return alive

    def _start_one(self, local_rank: int, environ: Mapping[str, str], lease_from: float, logs: _Logs) -> Worker:
        rank = self.part.first_rank + local_rank
        env = worker_environment(environ, self.part, local_rank, self._run, self._settings.environment)
        stdout, _ = self._stream(rank, "out", logs)
        stderr, log = self._stream(rank, "err", logs)
        process = subprocess.Popen(
            command(self._settings.entrypoint, self._settings.workers.forward_signals),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        self._guard.add(process.pid, lease_from)
        error_file = self._run.paths.error_file(self.part.round, rank)
        return Worker(rank, local_rank, process, os.pidfd_open(process.pid), error_file, log)

    def _stream(self, rank: int, stream: str, logs: _Logs) -> tuple[IO[bytes] | None, Path | None]:
        """The file that a stream goes to; None to share the agent's own."""
        path = self._run.paths.log(self.part.round, rank, stream)
        if path not in logs:
            return None, None
        if _covers(self._settings.logs.tee, stream):
            self._tee.follow(path, f"[{rank}] ", sys.stdout if stream == "out" else sys.stderr)
        return logs[path], path

    def _logs(self) -> _Logs:
        """The files that streams go to; none if they can't be had: for want of a log no worker stays away."""
        try:
            return bounded(self._open_logs, _LOGS_PATIENCE, f"{self._run.paths.logs}")
        except (OSError, StoreError) as error:
            print(f"no logs of round {self.part.round}: {error}; what its workers write goes here", file=sys.stderr)
            return {}

    def _open_logs(self) -> _Logs:
        part, logs = self.part, self._settings.logs
        files.make_directory(self._run.paths.round_logs(part.round))  # error files go there in any case
        streams = [stream for stream in ("out", "err") if _covers(logs.tee, stream) or _covers(logs.redirect, stream)]
        ranks = range(part.first_rank, part.first_rank + part.local_world_size)
        paths = [self._run.paths.log(part.round, rank, stream) for rank in ranks for stream in streams]
        return {path: path.open("ab") for path in paths}


def _covers(streams: Streams, stream: str) -> bool:
    return streams in (stream, "both")
