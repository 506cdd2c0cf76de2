"""The worker group of one node in one round: started, watched and ended together."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hpcelastic.agent.environment import RunFacts, worker_environment
from hpcelastic.agent.guard import kill_group, kill_marked
from hpcelastic.agent.guarded import Guard
from hpcelastic.agent.output import Tee
from hpcelastic.agent.settings import AgentSettings, Entrypoint, Streams
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.store import files

FUNCTION_RUNNER = "hpcelastic.worker"


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
    exec: Python could only before a fork, for the agent as well.
    """
    python = [sys.executable, "-u"]
    ignored = " ".join(name.removeprefix("SIG") for name in ("SIGUSR1", "SIGUSR2") if name not in forwarded)
    if ignored:
        python = ["/bin/sh", "-c", f"trap '' {ignored}; exec \"$@\"", "sh", *python]
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
        files.make_directory(self._run.paths.round_logs(self.part.round))
        try:
            for local_rank in range(self.part.local_world_size):
                worker = self._start_one(local_rank, environ, lease_from)
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

    def stop(self, grace: float) -> None:
        """End all workers and what they have started: SIGTERM, ``grace`` seconds, SIGKILL; return once all are gone."""
        self.send(signal.SIGTERM)
        self._await(time.monotonic() + grace)
        self.kill()
        self._await(None)
        for pidfd in list(self.running):
            self.reap(pidfd)
        self._tee.stop()

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
        self._tee.stop()

    def _await(self, deadline: float | None) -> None:
        """Until every worker has ended or ``deadline`` has come; none is reaped, so that their ids stay theirs."""
        alive = set(self.running)
        while alive:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ended, _, _ = select.select(list(alive), [], [], left)
            if not ended:
                return
            alive.difference_update(ended)

    def _start_one(self, local_rank: int, environ: Mapping[str, str], lease_from: float) -> Worker:
        rank = self.part.first_rank + local_rank
        env = worker_environment(environ, self.part, local_rank, self._run, self._settings.environment)
        with contextlib.ExitStack() as stack:
            stdout, _ = self._stream(stack, rank, "out")
            stderr, log = self._stream(stack, rank, "err")
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

    def _stream(self, stack: contextlib.ExitStack, rank: int, stream: str) -> tuple[IO[bytes] | None, Path | None]:
        """The file that a stream goes to; None to share the agent's own."""
        logs = self._settings.logs
        tee = _covers(logs.tee, stream)
        if not tee and not _covers(logs.redirect, stream):
            return None, None
        path = self._run.paths.log(self.part.round, rank, stream)
        file = stack.enter_context(path.open("ab"))
        if tee:
            self._tee.follow(path, f"[{rank}] ", sys.stdout if stream == "out" else sys.stderr)
        return file, path


def _covers(streams: Streams, stream: str) -> bool:
    return streams in (stream, "both")
