"""The worker group of one node in one round: started, watched and ended together."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import IO, Protocol, TypeAlias

from hpcelastic.agent.binding import bound
from hpcelastic.agent.environment import ROLE, RunFacts, worker_environment
from hpcelastic.agent.guard import kill_group, kill_marked
from hpcelastic.agent.guarded import Guard
from hpcelastic.agent.output import Tee
from hpcelastic.agent.settings import AgentSettings, Entrypoint
from hpcelastic.agent.warm import Birth, Order, Warm, shell_prefix
from hpcelastic.errors import StoreError
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.state import name_of
from hpcelastic.store import files
from hpcelastic.store.board import Board
from hpcelastic.store.bounded import bounded

FUNCTION_RUNNER = "hpcelastic.worker"

_KILL_PATIENCE = 5.0
"""Seconds in which a process that was killed has ended, unless a filesystem that hangs holds it."""

_LOGS_PATIENCE = 5.0
"""Seconds that the shared filesystem may take to open a round's logs."""

_BIRTH_PATIENCE = 60.0
"""Seconds in which the warm parent gives birth, its own start included; then fresh interpreters start instead."""

_NOWHERE = Path(os.devnull)
"""Where goes what is neither kept nor shown."""

_Logs: TypeAlias = dict[Path, IO[bytes]]


class Process(Protocol):
    """A child of ours, forked or exec'd."""

    pid: int

    def wait(self) -> int:
        """Reap it: its exit status, or minus the signal that ended it."""


@dataclass(frozen=True)
class Means:
    """What an agent starts workers with."""

    guard: Guard
    warm: Warm | None = None
    keep_fds: tuple[int, ...] = ()
    """Descriptors that every worker inherits."""

    board: Board | None = None
    """What they are asked through to come to a step's end."""

    processors: Sequence[Collection[int]] = ()
    """What each may use, by local rank; all that the agent may where there are none."""

    def bound_to(self, local_rank: int) -> Collection[int]:
        return self.processors[local_rank] if self.processors else ()


@dataclass(frozen=True)
class Worker:
    """One worker process; ``pidfd`` turns readable when it has ended."""

    rank: int
    local_rank: int
    process: Process
    pidfd: int
    error_file: Path
    log: Path | None
    """Where its standard error goes, if to a file."""


def words(entrypoint: Entrypoint, local_rank: int = 0) -> list[str]:
    """The command line of a worker, after ``python -u`` unless it is a program."""
    args = [Template(str(arg)).safe_substitute(local_rank=local_rank) for arg in entrypoint.args]
    if entrypoint.program:
        return [entrypoint.program, *args]
    if entrypoint.script:
        return [entrypoint.script, *args]
    if entrypoint.module:
        return ["-m", entrypoint.module, *args]
    return ["-m", FUNCTION_RUNNER, str(entrypoint.function), json.dumps(entrypoint.args)]


def can_be_warm(entrypoint: Entrypoint) -> bool:
    """Whether a fork can become it: not so a program; nor a directory, an archive, bytecode, all Python's."""
    if entrypoint.program:
        return False
    return entrypoint.script is None or (entrypoint.script.endswith(".py") and Path(entrypoint.script).is_file())


def program_problem(program: str, directory: Path) -> str:
    """What is wrong with a program to run, empty if nothing; a path is looked for in ``directory``, a name in PATH."""
    if "/" not in program:
        return "" if shutil.which(program) else "no such program in PATH; give its path"
    path = directory / program
    if not path.is_file():
        return f"there is no program {path}; check its path"
    return "" if os.access(path, os.X_OK) else f"{path} is not executable; chmod +x it"


def ignored_signals(forwarded: Collection[str]) -> list[str]:
    """Signals that workers ignore from the start, which a handler of the script overrides.

    SLURM may signal every process of a job, not the agent alone, and a bare user signal kills.
    """
    return [name for name in ("SIGUSR1", "SIGUSR2") if name not in forwarded]


def command(entrypoint: Entrypoint, forwarded: Collection[str] = (), local_rank: int = 0) -> list[str]:
    """The whole command line of a worker in a fresh interpreter, or of one that needs none."""
    python = [] if entrypoint.program else [sys.executable, "-u"]
    return [*shell_prefix(ignored_signals(forwarded)), *python, *words(entrypoint, local_rank)]


class WorkerGroup:
    """The workers of ``part``, of whom some may not be born yet."""

    def __init__(self, part: Assignment, settings: AgentSettings, run: RunFacts, means: Means) -> None:
        self.part = part
        self._settings = settings
        self._run = run
        self._means = means
        self._guard, self._warm, self._keep_fds, self._board = means.guard, means.warm, means.keep_fds, means.board
        self._tee = Tee()
        self._environ: Mapping[str, str] = {}
        self._lease_from = 0.0
        self._logs: _Logs = {}
        self._timer: threading.Timer | None = None
        self.births: dict[int, Birth] = {}
        """Workers that are not born yet, by the descriptor that turns readable when one is; see `born`."""

        self._expected: dict[int, int] = {}
        """The local rank that each of them will have."""

        self.running: dict[int, Worker] = {}
        """Workers that have not been reaped, by pidfd."""

        self.pids: dict[int, int] = {}
        """The process of each rank that has been started."""

    @property
    def over(self) -> bool:
        """Whether all workers have been reaped."""
        return not self.running and not self.births

    def start(self, environ: Mapping[str, str], lease_from: float) -> None:
        """Start all workers, under the lease that began at ``lease_from``; none is left if one can't be started.

        Those whom the warm parent is to fork are in ``births`` afterwards, and the caller waits for them.
        """
        self._environ, self._lease_from = environ, lease_from
        self._logs = self._open()
        if self._settings.logs.local_ranks:
            self._logs[_NOWHERE] = _NOWHERE.open("ab")
        self._guard.arm(lease_from)
        try:
            for local_rank in range(self.part.local_world_size):
                birth = self._warm.birth() if self._warm is not None else None
                if birth is None:
                    self._start_fresh(local_rank)
                else:
                    self.births[birth.fileno()] = birth
                    self._expected[birth.fileno()] = local_rank
        except BaseException:
            self.stop(grace=0.0)
            raise
        self._tee.start()
        if self.births:
            self._timer = threading.Timer(_BIRTH_PATIENCE, self._give_up, (list(self.births.values()),))
            self._timer.daemon = True
            self._timer.start()
        else:
            self._all_there()

    def born(self, fd: int) -> Worker:
        """Take in what has become of a birth: the worker, in a fresh interpreter if the warm parent gave none.

        The guard knows the worker before any code of the user's runs in it.
        """
        birth, local_rank = self.births.pop(fd), self._expected.pop(fd)
        worker = self._order(birth, local_rank)
        if worker is None:
            birth.cancel()
            worker = self._start_fresh(local_rank)
        if not self.births:
            self._all_there()
        return worker

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
        self._cancel_births()
        self.send(signal.SIGTERM)
        self._kill_deaf()
        self._await(time.monotonic() + grace)
        self.kill()
        held = [self.running.pop(pidfd) for pidfd in self._await(time.monotonic() + _KILL_PATIENCE)]
        for pidfd in list(self.running):
            self.reap(pidfd)
        for worker in held:
            os.close(worker.pidfd)
            threading.Thread(target=self._reap_late, args=(worker,), name=f"reaper {worker.rank}", daemon=True).start()
        self._ended(held)
        return held

    def kill(self) -> None:
        """SIGKILL all workers at once and everything that they have started, in whatever session."""
        self.send(signal.SIGKILL)
        self._kill_marked()

    def _kill_deaf(self) -> None:
        """SIGKILL those that ignore SIGTERM, as who asks in every step whether to stop; see `training.stop`."""
        for worker in list(self.running.values()):
            if self._board is not None and self._board.deaf(worker.local_rank, self.part.round):
                kill_group(worker.process.pid, signal.SIGKILL)

    def send(self, signum: int) -> None:
        """Signal every worker's process group."""
        for worker in list(self.running.values()):
            kill_group(worker.process.pid, signum)

    def finish(self, *spare: int) -> None:
        """All workers have ended by themselves: end what they left behind, but for the processes ``spare``."""
        self._kill_marked(*spare)
        self._ended([], *spare)

    def _kill_marked(self, *spare: int) -> None:
        kill_marked(self._run.node, self._warm.pid or 0 if self._warm is not None else 0, *spare)

    def _ended(self, held: list[Worker], *others: int) -> None:
        self._guard.disarm()
        self._tee.stop()
        if self._warm is not None:
            self._warm.reap_orphans([self._guard.pid, *others, *(worker.process.pid for worker in held)])

    def _give_up(self, births: list[Birth]) -> None:
        """Called in a thread of its own: the lines turn readable, and `born` starts fresh interpreters."""
        if self._warm is not None and self.births:
            self._warm.overdue(_BIRTH_PATIENCE)
        for birth in births:
            birth.give_up()

    def _cancel_births(self) -> None:
        for birth in self.births.values():
            birth.cancel()
        self.births.clear()
        self._expected.clear()
        self._all_there()

    def _all_there(self) -> None:
        """Nobody is to be born any more."""
        if self._timer is not None:
            self._timer.cancel()
        for log in self._logs.values():
            log.close()

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

    def _order(self, birth: Birth, local_rank: int) -> Worker | None:
        """Let a newborn be the worker; None if there is none, or none any more."""
        process = birth.process()
        if process is None:
            return None
        self._guard.add(process.pid, self._lease_from)
        pidfd = os.pidfd_open(process.pid)
        if cpus := self._means.bound_to(local_rank):
            with contextlib.suppress(ProcessLookupError):  # then it takes no order either
                os.sched_setaffinity(process.pid, cpus)
        if birth.order(self._what(local_rank)):
            return self._note(local_rank, process, pidfd)
        self._guard.remove(process.pid)
        os.close(pidfd)
        return None

    def _what(self, local_rank: int) -> Order:
        stdout, stderr = (self._stream(local_rank, stream) for stream in ("out", "err"))
        settings = self._settings
        return Order(
            words(settings.entrypoint, local_rank),
            self._environment(local_rank),
            1 if stdout is None else stdout.fileno(),
            2 if stderr is None else stderr.fileno(),
            ignored_signals(settings.workers.forward_signals),
        )

    def _start_fresh(self, local_rank: int) -> Worker:
        with bound(self._means.bound_to(local_rank)):
            process = subprocess.Popen(
                command(self._settings.entrypoint, self._settings.workers.forward_signals, local_rank),
                env=self._environment(local_rank),
                stdin=subprocess.DEVNULL,
                stdout=self._stream(local_rank, "out"),
                stderr=self._stream(local_rank, "err"),
                start_new_session=True,
                pass_fds=self._keep_fds,
            )
        self._guard.add(process.pid, self._lease_from)
        return self._note(local_rank, process, os.pidfd_open(process.pid))

    def _note(self, local_rank: int, process: Process, pidfd: int) -> Worker:
        rank = self.part.first_rank + local_rank
        log = self._run.paths.log(self.part.round, rank, "err")
        error_file = self._run.paths.error_file(self.part.round, rank)
        worker = Worker(rank, local_rank, process, pidfd, error_file, log if log in self._logs else None)
        self.running[pidfd] = worker
        self.pids[rank] = process.pid
        return worker

    def _environment(self, local_rank: int) -> dict[str, str]:
        return worker_environment(self._environ, self.part, local_rank, self._run, self._settings.environment)

    def _stream(self, local_rank: int, stream: str) -> IO[bytes] | None:
        """The file that a stream goes to; None to share the agent's own."""
        log = self._logs.get(self._path(local_rank, stream))
        return self._logs.get(_NOWHERE) if log is None and self._settings.logs.hides(local_rank) else log

    def _path(self, local_rank: int, stream: str) -> Path:
        return self._run.paths.log(self.part.round, self.part.first_rank + local_rank, stream)

    def _open(self) -> _Logs:
        """The files that streams go to; none if they can't be had: for want of a log no worker stays away."""
        try:
            logs = bounded(self._open_logs, _LOGS_PATIENCE, f"{self._run.paths.logs}")
        except (OSError, StoreError) as error:
            print(f"no logs of round {self.part.round}: {error}; what its workers write goes here", file=sys.stderr)
            return {}
        for local_rank, stream in self._kept():
            self._copy(local_rank, stream)
        return logs

    def _copy(self, local_rank: int, stream: str) -> None:
        """Have the tee follow what is to be seen elsewhere than in its log."""
        logs, path, prefix = self._settings.logs, self._path(local_rank, stream), self._prefix(local_rank)
        if logs.shown(local_rank, stream):
            self._tee.follow(path, prefix, sys.stdout if stream == "out" else sys.stderr)
        if texts := logs.matches(stream):
            kept = self._run.paths.matches(self.part.round, name_of(self._run.node), stream)
            self._tee.follow(path, prefix, kept, texts)

    def _prefix(self, local_rank: int) -> str:
        rank, role = self.part.first_rank + local_rank, self.part.role or ROLE
        return Template(self._settings.logs.prefix).safe_substitute(rank=rank, local_rank=local_rank, role_name=role)

    def _kept(self) -> list[tuple[int, str]]:
        """Local ranks and streams that go to files."""
        ranks, logs = range(self.part.local_world_size), self._settings.logs
        return [(rank, stream) for rank in ranks for stream in ("out", "err") if logs.to_file(rank, stream)]

    def _open_logs(self) -> _Logs:
        files.make_directory(self._run.paths.round_logs(self.part.round))  # error files go there in any case
        paths = [self._path(local_rank, stream) for local_rank, stream in self._kept()]
        return {path: path.open("ab") for path in paths}
