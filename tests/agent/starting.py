"""Workers for tests, started by a fork server or in fresh interpreters, as an agent starts them."""

import contextlib
import os
import select
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcelastic.agent.commands import worker_arguments
from hpcelastic.agent.environment import RunFacts, common_environment
from hpcelastic.agent.fork_server import ForkServer, ForkServerSettings
from hpcelastic.agent.guard import Guard
from hpcelastic.agent.guard_main import boottime, kill_marked_processes
from hpcelastic.agent.settings import AgentSettings, Entrypoint, LogSettings, WorkerSettings
from hpcelastic.agent.worker import WorkerResources
from hpcelastic.agent.workers import WorkerGroup
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.storage.paths import RunPaths
from tests.agent.processes import TIMEOUT


@dataclass
class Node:
    """The components of an agent: a guard, a fork server unless ``preload`` is empty, and one group of workers."""

    directory: Path
    entrypoint: Entrypoint
    guard: Guard
    fork_server: ForkServer | None
    facts: RunFacts
    workers: WorkerSettings
    environ: Mapping[str, str]
    variables: Mapping[str, str]
    keep_fds: tuple[int, ...] = ()
    reports: list[str] = field(default_factory=list)
    round: int = 0
    processors: Sequence[Collection[int]] = ()

    def start(self, workers: int = 1) -> WorkerGroup:
        """Request a group in the next round."""
        self.round += 1
        part = Assignment(self.round, 0, 1, 0, workers, workers, "127.0.0.1", 1, "", 0, workers)
        settings = AgentSettings(self.entrypoint, self.workers, LogSettings("both"), self.variables)
        group = WorkerGroup(
            part,
            settings,
            self.facts,
            WorkerResources(self.guard, self.fork_server, self.keep_fds, processors=self.processors),
        )
        group.start(self.environ, boottime())
        return group

    def attend(self, group: WorkerGroup, timeout: float = 3 * TIMEOUT) -> None:
        """Handle events like the agent's loop until all of ``group`` are spawned."""
        deadline = time.monotonic() + timeout
        while group.spawn_requests:
            assert time.monotonic() < deadline, f"{len(group.spawn_requests)} workers are not spawned"
            self.turn(group, 1.0)

    def turn(self, group: WorkerGroup, timeout: float) -> None:
        """Wait once, for a spawned process or the fork server's message."""
        server = [self.fork_server] if self.fork_server is not None and self.fork_server.pid is not None else []
        for source in select.select([*group.spawn_requests, *server], [], [], timeout)[0]:
            if isinstance(source, ForkServer):
                source.handle_message()
            elif source in group.spawn_requests:
                group.complete_spawn(source)

    def finish(self, group: WorkerGroup) -> list[int]:
        """Wait for the end of all workers. Return their exit statuses in the order of ranks."""
        self.attend(group)
        codes = {}
        deadline = time.monotonic() + 3 * TIMEOUT
        while group.running:
            assert time.monotonic() < deadline, "workers do not end"
            for pidfd in select.select(list(group.running), [], [], 1.0)[0]:
                worker, code = group.reap(pidfd)
                codes[worker.rank] = code
        group.finish()
        return [codes[rank] for rank in sorted(codes)]

    def run(self, workers: int = 1) -> list[int]:
        """Start a group and wait for its end. Return the exit statuses."""
        return self.finish(self.start(workers))

    def log(self, stream: str, rank: int = 0) -> str:
        """Return the output of a worker of the newest round."""
        return self.facts.paths.log(self.round, rank, stream).read_text()


@contextlib.contextmanager
def node(
    directory: Path,
    entrypoint: Entrypoint,
    preload: Sequence[str] = (),
    *,
    workers: int = 1,
    environ: Mapping[str, str] | None = None,
    keep_fds: tuple[int, ...] = (),
    forward: tuple[str, ...] = (),
    **variables: str,
) -> Iterator[Node]:
    """A node that runs ``entrypoint``. All its processes are ended at the end."""
    (directory / "run").mkdir(mode=0o700, exist_ok=True)
    facts = RunFacts(RunPaths(directory / "run"), "r", f"n@0-{os.getpid()}", 3)
    environ = dict(os.environ if environ is None else environ)
    reports: list[str] = []
    with contextlib.ExitStack() as stack:
        stack.callback(kill_marked_processes, facts.node)
        guard = stack.enter_context(Guard(facts.node, keep_fds))
        fork_server = None
        if preload:
            common = common_environment(environ, workers, facts, variables)
            settings = ForkServerSettings(preload, worker_arguments(entrypoint), common, keep_fds)
            fork_server = stack.enter_context(ForkServer(settings, guard, reports.append))
        settings_ = WorkerSettings(workers, forward_signals=forward, preload=tuple(preload))
        yield Node(directory, entrypoint, guard, fork_server, facts, settings_, environ, variables, keep_fds, reports)
