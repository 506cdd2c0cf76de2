"""The worker group of one node in one round. Its workers are started, watched, and parked or ended together."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from hpcelastic.agent.binding import cpu_affinity
from hpcelastic.agent.commands import command_line, ignored_signals, worker_arguments
from hpcelastic.agent.environment import RunFacts, error_file, worker_environment
from hpcelastic.agent.group_logs import GroupLogs
from hpcelastic.agent.guard_main import kill_group, kill_marked_processes
from hpcelastic.agent.settings import AgentSettings
from hpcelastic.agent.spawn_request import SpawnRequest, WorkerCommand
from hpcelastic.agent.worker import FreshProcess, Process, Worker, WorkerResources, pidfd_of
from hpcelastic.ipc.readiness import readable
from hpcelastic.ipc.worker_channel import Park, Parked, Resume, WorkerChannel
from hpcelastic.protocol.assignment import Assignment

_KILL_TIMEOUT = 5.0
"""Seconds in which a killed process ends, unless a filesystem that hangs blocks it."""

_SPAWN_TIMEOUT = 60.0
"""Seconds in which the fork server spawns a process, including its own start. Then fresh interpreters are started."""


class WorkerGroup:
    """The workers of the assignment ``part``. Some of them may not be spawned yet."""

    def __init__(self, part: Assignment, settings: AgentSettings, run: RunFacts, resources: WorkerResources) -> None:
        self.part = part
        self._settings, self._run, self._resources = settings, run, resources
        self._guard, self._fork_server = resources.guard, resources.fork_server
        self._logs = GroupLogs(part, settings.logs, run)
        self._environ: Mapping[str, str] = {}
        self._lease_from: float | None = None
        """The start of the lease under which the workers were started; None for workers without a place in a round."""

        self._timer: threading.Timer | None = None
        self.spawn_requests: dict[int, SpawnRequest] = {}
        """Workers that are not spawned yet, by the descriptor that turns readable when one is: see `complete_spawn`."""

        self._requested_ranks: dict[int, int] = {}
        """The local rank of each spawn request, by the same descriptor."""

        self.running: dict[int, Worker] = {}
        """Workers that have not been reaped, by pidfd."""

        self.parked: set[int] = set()
        """The pidfds of the workers that are parked."""

        self.resumed: list[int] = []
        """The ranks of the workers that were resumed."""

        self.pids: dict[int, int] = {}
        """The process id of each rank that has been started."""

    @property
    def ended(self) -> bool:
        """True once each worker is reaped or parked."""
        return not self.spawn_requests and self.parked.issuperset(self.running)

    def start(self, environ: Mapping[str, str], lease_from: float, *parked: "WorkerGroup") -> None:
        """Start all workers, under the lease that began at ``lease_from``. If one cannot be started, end all.

        The workers of the groups ``parked`` are resumed. Workers that the fork server spawns are in ``spawn_requests``
        afterwards, and the caller waits for them.
        """
        self._lease_from = lease_from
        self._guard.arm(lease_from)
        try:
            self._start(environ, parked)
        except BaseException:
            self.stop(grace=0.0)
            raise

    def start_early(self, environ: Mapping[str, str]) -> None:
        """Start workers that have no place in a round yet, and park as soon as they wait for one. See `start`.

        The guard does not watch them, because they cannot act for the run.
        """
        try:
            self._start(environ, ())
        except BaseException:
            self.kill()
            raise

    def _start(self, environ: Mapping[str, str], parked: "Sequence[WorkerGroup]") -> None:
        self._environ = environ
        self._logs.open()
        for local_rank in self.part.local_ranks:
            if any(self._resume(local_rank, group) for group in parked):
                continue
            request = self._fork_server.request_spawn() if self._fork_server is not None else None
            if request is None:
                self._start_fresh(local_rank)
            else:
                self.spawn_requests[request.fileno()] = request
                self._requested_ranks[request.fileno()] = local_rank
        for group in parked:
            group.close()
        self._logs.start_copying()
        if self.spawn_requests:
            self._timer = threading.Timer(_SPAWN_TIMEOUT, self._expire_requests, (list(self.spawn_requests.values()),))
            self._timer.daemon = True
            self._timer.start()
        else:
            self._end_spawning()

    def complete_spawn(self, fd: int) -> Worker:
        """Complete the spawn request ``fd``. Return the worker, in a fresh interpreter if the request has failed.

        The guard knows the worker before any user code runs in it.
        """
        request, local_rank = self.spawn_requests.pop(fd), self._requested_ranks.pop(fd)
        worker = self._start_spawned(request, local_rank)
        if worker is None:
            request.cancel()
            worker = self._start_fresh(local_rank)
        if not self.spawn_requests:
            self._end_spawning()
        return worker

    def reap(self, pidfd: int) -> tuple[Worker, int]:
        """Reap a worker that has ended. Return it and its exit status, or minus the signal that ended it."""
        worker = self.running.pop(pidfd)
        self.parked.discard(pidfd)
        kill_group(worker.process.pid, signal.SIGKILL)  # its children; its id is not reused before it is reaped
        exit_code = worker.process.wait()
        os.close(pidfd)
        self._guard.remove(worker.process.pid)
        self._forget(worker.process.pid)
        return worker, exit_code

    def note_parked(self, pid: int) -> None:
        """Note that a worker is parked. The guard does not watch it any more, because it cannot act for the run."""
        for pidfd, worker in self.running.items():
            if worker.process.pid == pid:
                self.parked.add(pidfd)
                self._resources.outside[pid] = worker.local_rank
                self._guard.remove(pid)

    def park(self, grace: float, stop_grace: float, ignore_sigterm: Collection[int] = ()) -> list[Worker]:
        """Park the workers that have a channel, and stop the others; see `stop`.

        A worker that is not parked after ``grace`` seconds is killed.
        """
        self._cancel_spawn_requests()
        asked = self._ask_to_park() if grace > 0 else {}
        self._wait_until_parked(asked, time.monotonic() + grace)
        late = [pidfd for pidfd in asked if pidfd in self.running and pidfd not in self.parked]
        for pidfd in late:
            kill_group(self.running[pidfd].process.pid, signal.SIGKILL)
        if len(self.parked) == self.part.local_world_size:
            self._clean_up([])
            return []
        others = {pidfd: worker for pidfd, worker in self.running.items() if pidfd not in self.parked}
        return self._stop(others, stop_grace, ignore_sigterm)

    def _ask_to_park(self) -> dict[int, WorkerChannel]:
        """Ask all workers that have a channel to park. Return the channels of those that were reached, by pidfd."""
        if self._resources.channels is None:
            return {}
        self._resources.channels.accept()
        channels = {pidfd: self._resources.channel(worker.process.pid) for pidfd, worker in self.running.items()}
        return {fd: channel for fd, channel in channels.items() if channel and channel.send(Park(self.part.round))}

    def _wait_until_parked(self, asked: Mapping[int, WorkerChannel], deadline: float) -> None:
        """Wait until each worker in ``asked`` is parked or has ended, or ``deadline`` has passed."""
        waiting = set(asked) - self.parked
        while waiting:
            sources = [source for pidfd in waiting for source in (pidfd, asked[pidfd].fileno())]
            ready = readable(sources, max(0.0, deadline - time.monotonic()))
            if not ready:
                return
            waiting = {fd for fd in waiting if fd not in ready and not self._leaves_wait(fd, asked[fd], ready)}

    def _leaves_wait(self, pidfd: int, channel: WorkerChannel, ready: Collection[int]) -> bool:
        """Read the next message of a worker. Return True if the worker is parked, or has closed its channel."""
        pid = self.running[pidfd].process.pid
        if channel.fileno() in ready and self._resources.channels is not None:
            message = self._resources.channels.read(pid)
            if isinstance(message, Parked) and message.round == self.part.round:
                self.note_parked(pid)
        return pidfd in self.parked or self._resources.channel(pid) is None

    def stop(self, grace: float, ignore_sigterm: Collection[int] = ()) -> list[Worker]:
        """End all workers and their children: SIGTERM, ``grace`` seconds, SIGKILL. Return once all have ended.

        Workers with the local ranks ``ignore_sigterm`` do not end at SIGTERM, and are killed at once.

        Return the workers that are still blocked in kernel I/O, in a system call or in the kernel's clean-up, because a
        filesystem hangs. No user code of theirs runs again, so the caller need not wait for them.
        """
        self._cancel_spawn_requests()
        return self._stop(self.running, grace, ignore_sigterm)

    def _stop(self, workers: Mapping[int, Worker], grace: float, ignore_sigterm: Collection[int]) -> list[Worker]:
        stopped = dict(workers)
        for worker in stopped.values():
            kill_group(worker.process.pid, signal.SIGKILL if worker.local_rank in ignore_sigterm else signal.SIGTERM)
        self._wait_for_end(stopped, time.monotonic() + grace)
        for worker in stopped.values():
            kill_group(worker.process.pid, signal.SIGKILL)
            self._resources.outside.pop(worker.process.pid, None)
        self.parked.difference_update(stopped)
        self._kill_marked()
        blocked = self._reap_killed(stopped)
        self._clean_up(blocked)
        return blocked

    def _reap_killed(self, pidfds: Collection[int]) -> list[Worker]:
        """Reap workers that were killed. Return those that are still blocked, which threads reap."""
        alive = self._wait_for_end(pidfds, time.monotonic() + _KILL_TIMEOUT)
        for pidfd in pidfds:
            if pidfd not in alive:
                self.reap(pidfd)
        blocked = [self.running.pop(pidfd) for pidfd in alive]
        for worker in blocked:
            os.close(worker.pidfd)
            self._forget(worker.process.pid)
            threading.Thread(
                target=self._reap_blocked, args=(worker,), name=f"reaper {worker.rank}", daemon=True
            ).start()
        return blocked

    def discard(self, local_ranks: Collection[int]) -> None:
        """SIGKILL the parked workers with these local ranks. Return once they have ended."""
        discarded = [pidfd for pidfd in self.parked if self.running[pidfd].local_rank in local_ranks]
        for pidfd in discarded:
            kill_group(self.running[pidfd].process.pid, signal.SIGKILL)
        self._reap_killed(discarded)

    def kill(self) -> None:
        """SIGKILL all workers, which are in no round. Return once they have ended."""
        self._cancel_spawn_requests()
        for worker in self.running.values():
            kill_group(worker.process.pid, signal.SIGKILL)
        self._reap_killed(list(self.running))
        self.close()

    def close(self) -> None:
        """Release the logs of a group without workers."""
        self._end_spawning()
        self._logs.stop_copying()

    def send(self, signum: int) -> None:
        """Signal every worker's process group."""
        for worker in list(self.running.values()):
            kill_group(worker.process.pid, signum)

    def finish(self, *spare: int) -> None:
        """End the processes that the workers left behind, except ``spare``. Call it once all workers have ended."""
        self._kill_marked(*spare)
        self._clean_up([], *spare)

    def _kill_marked(self, *spare: int) -> None:
        """SIGKILL all processes that the workers have started, in any session, except ``spare`` and those of workers
        outside the round."""
        idle = [] if self._fork_server is None else self._fork_server.idle_pids()
        kill_marked_processes(self._run.node, *idle, *spare, keep=self._resources.outside)

    def _clean_up(self, blocked: list[Worker], *others: int) -> None:
        self._guard.disarm()
        self._logs.stop_copying()
        if self._fork_server is not None:
            known = [worker.process.pid for worker in (*blocked, *self.running.values())]
            self._fork_server.reap_orphans([self._guard.pid, *others, *known, *self._resources.outside])

    def _expire_requests(self, requests: list[SpawnRequest]) -> None:
        """Expire the spawn requests, so that `complete_spawn` starts fresh interpreters. Runs in its own thread."""
        if self._fork_server is not None and self.spawn_requests:
            self._fork_server.report_timeout(_SPAWN_TIMEOUT)
        for request in requests:
            request.expire()

    def _cancel_spawn_requests(self) -> None:
        for request in self.spawn_requests.values():
            request.cancel()
        self.spawn_requests.clear()
        self._requested_ranks.clear()
        self._end_spawning()

    def _end_spawning(self) -> None:
        """Release the resources that only the start of workers needs."""
        if self._timer is not None:
            self._timer.cancel()
        self._logs.close()

    def _reap_blocked(self, worker: Worker) -> None:
        worker.process.wait()
        self._guard.remove(worker.process.pid)

    def _forget(self, pid: int) -> None:
        self._resources.outside.pop(pid, None)
        if self._resources.channels is not None:
            self._resources.channels.drop(pid)

    def _wait_for_end(self, pidfds: Iterable[int], deadline: float) -> set[int]:
        """Wait until each of the workers has ended or ``deadline`` has passed. Return the pidfds of those that run.

        No worker is reaped, so that their process ids are not reused.
        """
        alive = set(pidfds)
        while alive:
            ended = readable(alive, max(0.0, deadline - time.monotonic()))
            if not ended:
                break
            alive.difference_update(ended)
        return alive

    def _resume(self, local_rank: int, parked: "WorkerGroup") -> bool:
        """Resume the worker of ``local_rank``. Return False if it is not parked, or has ended."""
        pidfd = next((fd for fd in parked.parked if parked.running[fd].local_rank == local_rank), None)
        if pidfd is None:
            return False
        worker = parked.running[pidfd]
        pid = worker.process.pid
        self._let_guard_watch(pid)
        before, environ = parked._environment(local_rank), self._environment(local_rank)
        changed = {name: environ.get(name) for name in before | environ if environ.get(name) != before.get(name)}
        streams = [self._logs.stream(local_rank, stream) for stream in ("out", "err")]
        fds = [number if file is None else file.fileno() for number, file in enumerate(streams, 1)]
        channel = self._resources.channel(pid)
        if channel is None or not channel.send(Resume(self.part.round, changed), fds):
            parked.discard([local_rank])
            return False
        del parked.running[pidfd]
        parked.parked.discard(pidfd)
        self._resources.outside.pop(pid, None)
        self.resumed.append(self._register(local_rank, worker.process, pidfd).rank)
        return True

    def _start_spawned(self, request: SpawnRequest, local_rank: int) -> Worker | None:
        """Start the worker in the spawned process. Return None if there is none, or it has ended."""
        process = request.process()
        if process is None:
            return None
        self._let_guard_watch(process.pid)
        pidfd = pidfd_of(process)
        if cpus := self._resources.processors_of(local_rank):
            with contextlib.suppress(ProcessLookupError):  # then it does not read its command either
                os.sched_setaffinity(process.pid, cpus)
        if request.send_command(self._command(local_rank)):
            return self._register(local_rank, process, pidfd)
        self._guard.remove(process.pid)
        os.close(pidfd)
        return None

    def _command(self, local_rank: int) -> WorkerCommand:
        stdout, stderr = (self._logs.stream(local_rank, stream) for stream in ("out", "err"))
        settings = self._settings
        return WorkerCommand(
            worker_arguments(settings.entrypoint, local_rank),
            self._environment(local_rank),
            1 if stdout is None else stdout.fileno(),
            2 if stderr is None else stderr.fileno(),
            ignored_signals(settings.workers.forward_signals),
        )

    def _start_fresh(self, local_rank: int) -> Worker:
        with cpu_affinity(self._resources.processors_of(local_rank)):
            process = subprocess.Popen(
                command_line(self._settings.entrypoint, self._settings.workers.forward_signals, local_rank),
                env=self._environment(local_rank),
                stdin=subprocess.DEVNULL,
                stdout=self._logs.stream(local_rank, "out"),
                stderr=self._logs.stream(local_rank, "err"),
                start_new_session=True,
                pass_fds=self._resources.keep_fds,
            )
        self._let_guard_watch(process.pid)
        fresh = FreshProcess(process)
        return self._register(local_rank, fresh, pidfd_of(fresh))

    def _register(self, local_rank: int, process: Process, pidfd: int) -> Worker:
        rank, errors = self.part.rank_of(local_rank), error_file(self.part, local_rank, self._run)
        worker = Worker(rank, local_rank, process, pidfd, errors, self._logs.error_log(local_rank))
        self.running[pidfd] = worker
        self.pids[rank] = process.pid
        if self.part.early:
            self._resources.outside[process.pid] = local_rank
        return worker

    def _let_guard_watch(self, pid: int) -> None:
        if self._lease_from is not None:
            self._guard.add(pid, self._lease_from)

    def _environment(self, local_rank: int) -> dict[str, str]:
        return worker_environment(self._environ, self.part, local_rank, self._run, self._settings.environment)
