"""Asks SLURM what it alone knows of a run: who is about to come, whom it holds back, which nodes it drains.

Every agent has a watch and one of them asks: that of the first leader, while there is a question. While a round forms
that is how many nodes are to be waited for; for half a minute after a node was lost, whether its job waits to start
again for no other reason than SLURM's own delay; and else, every ``slurm.poll`` seconds, whether nodes are drained. A
node that an allocation has lost is replaced by a job of its own.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hpcelastic.agent.surroundings import Outlook
from hpcelastic.errors import HpcElasticError
from hpcelastic.protocol.decide import retire
from hpcelastic.protocol.state import Cause, Phase, State
from hpcelastic.rendezvous.rendezvous import steer_run
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.jobs import submitted
from hpcelastic.slurm.queue import QueuedJob, held_back, outlook
from hpcelastic.store.backend import backend_of
from hpcelastic.store.paths import RunPaths

_FORMING = (1.0, 4.0, 15.0, 60.0)
"""Seconds from one question to the next while a round forms, the last again and again."""

_AFTER_LOSS = (2.0, 2.0, 6.0, 20.0)
"""The same after a node was lost, in a run of jobs that come back singly; each time is more than the second in which
SLURM can't start a job again on the node that it just left."""


@dataclass(frozen=True)
class Watched:
    """What a watch is about."""

    paths: RunPaths
    writer: str
    poll: float
    single: bool
    """Whether the run's jobs have one node each."""

    refill: float
    """Seconds after which a lost node of an allocation is replaced; 0 for never."""

    replace: Callable[[int], str]
    """Submits jobs of one node, so many; what came of it, for a person."""


@dataclass(frozen=True)
class _Question:
    """Something to be asked of SLURM, ``pause`` seconds after the one before."""

    pause: float
    ask: Callable[[State], None]


class Watch:
    """The watch of one agent; ``report`` is given what a person may like to know."""

    def __init__(self, watched: Watched, report: Callable[[str], None]) -> None:
        self._watched = watched
        self._report = report
        self._expect: Callable[[Outlook], None] = lambda outlook: None
        self._news = threading.Condition()
        self._state: State | None = None
        self._first = self._stopping = False
        self._plan: Sequence[_Question] = ()
        """What to ask next, the last again and again."""

        self._due = float("inf")
        self._had = self._losses = 0
        """How many nodes a round has had, and how many rounds have ended by a loss."""

        self._held: frozenset[str] = frozenset()
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    def start(self, expect: Callable[[Outlook], None]) -> None:
        """See `hpcelastic.agent.surroundings`."""
        self._expect = expect
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; a question that is on its way is not waited for."""
        with self._news:
            self._stopping = True
            self._news.notify()

    def learned(self, state: State, first: bool) -> None:
        """The run stands so, and it is for us to ask, or not."""
        with self._news:
            before, was = self._state, self._first
            self._state, self._first = state, first
            if first and (not was or before is None or _changed(before, state)):
                self._begin(state)
            elif not first:
                self._due = float("inf")
            self._count(state)
            self._news.notify()

    def _begin(self, state: State) -> None:
        self._held = frozenset()
        self._plan = self._questions(state)
        self._due = time.monotonic() + self._plan[0].pause

    def _questions(self, state: State) -> Sequence[_Question]:
        watched, usual = self._watched, _Question(self._watched.poll, self._heed_drains)
        if state.phase is Phase.JOINING:
            return [_Question(pause, lambda state: self._expect(self.outlook())) for pause in _FORMING]
        if watched.single and _missing(state):
            return [*(_Question(pause, lambda state: self._spare_the_wait()) for pause in _AFTER_LOSS), usual]
        if self._lost(state) and watched.refill:
            return [_Question(watched.refill, self._refill), usual]
        return [usual]

    def _count(self, state: State) -> None:
        """Remember how many nodes there were, until a round is smaller for something else than a loss."""
        if state.phase is Phase.RUNNING and not self._lost(state):
            self._had, self._losses = _nodes_of(state), state.spent.get(Cause.NODE.value, 0)

    def _lost(self, state: State) -> int:
        """How many nodes the run has lost since it had most of them."""
        losses = state.spent.get(Cause.NODE.value, 0) - self._losses
        return min(losses, max(0, min(self._had, state.most) - _nodes_of(state)))

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._stopping and (left := self._due - time.monotonic()) > 0:
                    self._news.wait(min(left, threading.TIMEOUT_MAX))
                if self._stopping:
                    return
                question, state = self._plan[0], self._state
                self._plan = self._plan[1:] or self._plan
                self._due = time.monotonic() + self._plan[0].pause
            assert state is not None
            try:
                if not state.phase.final:
                    question.ask(state)
            except (HpcElasticError, OSError) as error:  # the run goes on without an answer
                self._report(f"SLURM was asked in vain: {error}")

    def outlook(self) -> Outlook:
        """Who may still come. Raises SlurmError, StoreError."""
        agents = self._agents()
        return outlook(self._queue(agents), agents)

    def _queue(self, agents: Mapping[str, int]) -> list[QueuedJob]:
        """The run's jobs: those that were submitted for it, and those of its ``agents``."""
        ours = {
            *(job["job"] for job in submitted(self._watched.paths)),
            *(job.rpartition(".")[0] for job in agents),
        }
        return [job for job in scheduler.queue() if job.id in ours or job.array in ours]

    def _agents(self) -> Counter[str]:
        """On how many nodes an agent was seen of each incarnation of a job, a dead one too: those are not to come."""
        seen = {(lease.member.job, lease.member.name) for lease in backend_of(self._watched.paths).leases().values()}
        return Counter(job for job, _ in seen)

    def _spare_the_wait(self) -> None:
        """Start jobs that are held back twice in a row: the node that they left is free by then."""
        held = held_back(self._queue(self._agents()))
        for job in held & self._held:
            scheduler.start_now(job)
            self._report(f"job {job} was requeued and is spared SLURM's wait before it starts again")
        self._held = held - self._held

    def _refill(self, state: State) -> None:
        """Ask for a job of one node in place of each that the allocation has lost for good."""
        lost = self._lost(state)
        if lost:
            self._report(f"{lost} lost: asking SLURM for as many in place of {'it' if lost == 1 else 'them'}")
            said = self._watched.replace(lost)
            if said:
                self._report(said)
            self._had -= lost  # should those be lost as well, they are replaced anew once they have come

    def _heed_drains(self, state: State) -> None:
        inside = {p.node for p in state.participants}
        leases = backend_of(self._watched.paths).leases()
        hosts = {node: leases[node].member.machine for node in inside & leases.keys()}
        for host, why in scheduler.draining(sorted({*hosts.values()})).items():
            self._report(f"SLURM drains {host} ({why}): its workers come to a step's end, and the others go on")
            there = [node for node in hosts if hosts[node] == host]
            steer_run(self._watched.paths, self._watched.writer, partial(retire, nodes=there))


def _nodes_of(state: State) -> int:
    return len(state.participants) + len(state.standbys)


def _changed(before: State, state: State) -> bool:
    return (before.phase, before.round) != (state.phase, state.round)


def _missing(state: State) -> bool:
    return len(state.participants) < state.most and bool(set(state.spent) & {Cause.NODE.value, Cause.LEAVE.value})
