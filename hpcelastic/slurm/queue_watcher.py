"""The queue watcher queries SLURM for a run: its pending nodes, its delayed jobs and its drained nodes.

Every agent has a queue watcher, and only that of the first leader queries SLURM. While a round forms, it asks how many
nodes may still join. For half a minute after the loss of a node, it asks whether the node's job is delayed only by
SLURM's own wait after a requeue. Otherwise it asks every ``slurm.poll`` seconds whether nodes are drained. It replaces
a node that an allocation has lost by a job of one node.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hpcelastic.agent.batch_system import PendingCapacity
from hpcelastic.backends.backend import Backend
from hpcelastic.errors import HpcElasticError
from hpcelastic.protocol.decide import retire
from hpcelastic.protocol.state import Cause, NodeState, Phase, State, job_start
from hpcelastic.rendezvous.run import steer_run
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.jobs import submitted
from hpcelastic.slurm.queue import QueuedJob, delayed_requeues, pending_capacity
from hpcelastic.storage.paths import RunPaths

_FORMING_INTERVALS = (1.0, 4.0, 15.0, 60.0)
"""Seconds between queries while a round forms. The last interval repeats."""

_LOSS_INTERVALS = (2.0, 2.0, 6.0, 20.0)
"""Seconds between queries after the loss of a node in a run of one-node jobs. Each interval is longer than one second:
within that time SLURM cannot start a job again on the node that it has just left."""


@dataclass(frozen=True)
class WatchedRun:
    """The run of a queue watcher."""

    paths: RunPaths
    backend: Backend
    writer: str
    poll: float
    one_node_jobs: bool
    """Whether the run's jobs have one node each."""

    refill: float
    """Seconds after which a lost node of an allocation is replaced; 0 to never replace it."""

    submit: Callable[[int], str]
    """Submits the given number of one-node jobs; returns a message about the result. Raises SlurmError."""


@dataclass(frozen=True)
class _Query:
    """A query to SLURM, ``delay`` seconds after the previous one."""

    delay: float
    run: Callable[[State], None]


class QueueWatcher:
    """The queue watcher of one agent. It passes messages for the user to ``report``."""

    def __init__(self, watched: WatchedRun, report: Callable[[str], None]) -> None:
        self._watched = watched
        self._report = report
        self._deliver: Callable[[PendingCapacity], None] = lambda pending_capacity: None
        self._condition = threading.Condition()
        self._state: State | None = None
        self._first = self._stopping = False
        self._plan: Sequence[_Query] = ()
        """The next queries. The last one repeats."""

        self._due = float("inf")
        self._whole: State | None = None
        """The last round before any loss."""

        self._delayed: frozenset[str] = frozenset()
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    def start(self, deliver: Callable[[PendingCapacity], None]) -> None:
        """See `hpcelastic.agent.batch_system`."""
        self._deliver = deliver
        self._thread.start()

    def stop(self) -> None:
        """Make no more queries. Do not wait for a query that is in progress."""
        with self._condition:
            self._stopping = True
            self._condition.notify()

    def observe(self, state: State, first: bool) -> None:
        """Take over the state of the run. Only the agent that is ``first`` queries SLURM."""
        with self._condition:
            before, was_first = self._state, self._first
            self._state, self._first = state, first
            if first and (not was_first or before is None or _round_changed(before, state)):
                self._start_plan(state)
            elif not first:
                self._due = float("inf")
            self._remember(state)
            self._condition.notify()

    def _start_plan(self, state: State) -> None:
        self._delayed = frozenset()
        self._plan = self._queries(state)
        self._due = time.monotonic() + self._plan[0].delay

    def _queries(self, state: State) -> Sequence[_Query]:
        watched, usual = self._watched, _Query(self._watched.poll, self._retire_drained_nodes)
        if state.phase is Phase.JOINING:
            return [_Query(delay, lambda state: self._deliver(self.pending_capacity())) for delay in _FORMING_INTERVALS]
        if watched.one_node_jobs and _lacks_lost_nodes(state):
            return [*(_Query(delay, lambda state: self._start_delayed_jobs()) for delay in _LOSS_INTERVALS), usual]
        if self._lost_nodes(state) and watched.refill:
            return [_Query(watched.refill, self._refill), _Query(watched.poll, self._retire_and_refill)]
        return [usual]

    def _remember(self, state: State) -> None:
        """Remember a running round, unless it is smaller because of lost nodes."""
        if state.phase is Phase.RUNNING and not self._lost_nodes(state):
            self._whole = state

    def _lost_nodes(self, state: State, left: Iterable[str] = ()) -> int:
        """Return the number of nodes that were lost since the remembered round, without those that have ``left``.

        Many nodes may be lost and leave in one round. Without ``left``, the number is an upper bound.
        """
        whole = self._whole
        if whole is None or state.spent.get(Cause.NODE.value, 0) <= whole.spent.get(Cause.NODE.value, 0):
            return 0
        stayed = _nodes_of(whole).difference(left)
        return max(0, min(len(stayed), state.max_nodes) - len(_nodes_of(state)))

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._stopping and (left := self._due - time.monotonic()) > 0:
                    self._condition.wait(min(left, threading.TIMEOUT_MAX))
                if self._stopping:
                    return
                query, state = self._plan[0], self._state
                self._plan = self._plan[1:] or self._plan
                self._due = time.monotonic() + self._plan[0].delay
            assert state is not None
            try:
                if not state.phase.final:
                    query.run(state)
            except (HpcElasticError, OSError) as error:  # the run continues without an answer
                self._report(f"a query to SLURM failed: {error}")
            except Exception as error:  # a defect must not end the queries that follow
                self._report(f"a query to SLURM failed: {error!r}")

    def pending_capacity(self) -> PendingCapacity:
        """Return the nodes that may still join. Raises SlurmError, StoreError."""
        agents = self._agents()
        return pending_capacity(self._queue(agents), agents)

    def _queue(self, agents: Mapping[str, int]) -> list[QueuedJob]:
        """Return the run's jobs: those that were submitted for it, and those of its ``agents``."""
        run_jobs = {
            *(job["job"] for job in submitted(self._watched.paths)),
            *(job_start(job)[0] for job in agents),
        }
        return [job for job in scheduler.queue() if job.id in run_jobs or job.array in run_jobs]

    def _agents(self) -> Counter[str]:
        """Count the nodes on which an agent was seen, by incarnation of a job.

        A dead agent counts too, because its node does not join again.
        """
        seen = {(lease.member.job, lease.member.name) for lease in self._watched.backend.leases().values()}
        return Counter(job for job, _ in seen)

    def _start_delayed_jobs(self) -> None:
        """Start jobs that are delayed in two queries in a row: the node that they left is free by then."""
        delayed = delayed_requeues(self._queue(self._agents()))
        for job in delayed & self._delayed:
            scheduler.start_now(job)
            self._report(f"job {job} was requeued and may start now: SLURM's delay after a requeue was cancelled")
        self._delayed = delayed - self._delayed

    def _refill(self, state: State) -> None:
        """Submit a one-node job in place of each node that the allocation has lost."""
        if not self._lost_nodes(state):
            return
        leases = self._watched.backend.leases()
        left = [node for node, lease in leases.items() if lease.member.node_state is NodeState.LEFT]
        if lost := self._lost_nodes(state, left):
            self._report(f"lost nodes: {lost}; submitting as many one-node jobs in their place")
            message = self._watched.submit(lost)
            if message:
                self._report(message)
        # The replacements count once they have joined. If they are lost then, they are replaced too.
        self._whole = state

    def _retire_and_refill(self, state: State) -> None:
        """Make the usual query. Replace lost nodes if the submission has failed before."""
        self._retire_drained_nodes(state)
        self._refill(state)

    def _retire_drained_nodes(self, state: State) -> None:
        leases = self._watched.backend.leases()
        hosts = {node: leases[node].member.machine for node in state.ranks.keys() & leases.keys()}
        for host, reason in scheduler.draining(sorted({*hosts.values()})).items():
            self._report(
                f"SLURM drains {host} ({reason}): its workers stop at the end of a step, and the other nodes continue"
            )
            drained = [node for node in hosts if hosts[node] == host]
            steer_run(self._watched.backend, self._watched.writer, partial(retire, nodes=drained))


def _nodes_of(state: State) -> set[str]:
    return {*state.ranks, *state.standbys}


def _round_changed(before: State, state: State) -> bool:
    return (before.phase, before.round) != (state.phase, state.round)


def _lacks_lost_nodes(state: State) -> bool:
    return len(state.participants) < state.max_nodes and bool(set(state.spent) & {Cause.NODE.value, Cause.LEAVE.value})
