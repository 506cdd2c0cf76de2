"""Asks SLURM what it alone knows of a run: who is about to come, whom it holds back, which nodes it drains.

Every agent has a watch and one of them asks: that of the first leader, while there is a question. While a round forms
that is how many nodes are to be waited for; for half a minute after a node was lost, whether its job waits to start
again for no other reason than SLURM's own delay; and else, every ``slurm.poll`` seconds, whether nodes are drained.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from hpcelastic.agent.surroundings import Outlook
from hpcelastic.errors import HpcElasticError
from hpcelastic.protocol.decide import drain
from hpcelastic.protocol.state import Cause, Phase, State
from hpcelastic.rendezvous.rendezvous import steer_run
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.jobs import submitted
from hpcelastic.slurm.queue import QueuedJob, held_back, outlook
from hpcelastic.store.leases import read_leases
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


class Watch:
    """The watch of one agent; ``report`` is given what a person may like to know."""

    def __init__(self, watched: Watched, report: Callable[[str], None]) -> None:
        self._watched = watched
        self._report = report
        self._expect: Callable[[Outlook], None] = lambda outlook: None
        self._news = threading.Condition()
        self._state: State | None = None
        self._first = self._stopping = False
        self._pauses: Sequence[float] = ()
        self._due = float("inf")
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
            self._news.notify()

    def _begin(self, state: State) -> None:
        self._held = frozenset()
        poll = self._watched.poll
        if state.phase is Phase.JOINING:
            self._pauses = _FORMING
        elif state.phase is Phase.RUNNING and self._watched.single and _missing(state):
            self._pauses = (*_AFTER_LOSS, poll)
        else:
            self._pauses = (poll,)
        self._due = time.monotonic() + self._pauses[0]

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._stopping and (left := self._due - time.monotonic()) > 0:
                    self._news.wait(min(left, threading.TIMEOUT_MAX))
                if self._stopping:
                    return
                self._pauses = self._pauses[1:] or self._pauses
                self._due = time.monotonic() + self._pauses[0]
                state = self._state
            assert state is not None
            try:
                self._ask(state)
            except (HpcElasticError, OSError) as error:  # the run goes on without an answer
                self._report(f"SLURM was asked in vain: {error}")

    def _ask(self, state: State) -> None:
        if state.phase is Phase.JOINING:
            self._expect(self.outlook())
        elif state.phase is Phase.RUNNING and self._pauses[0] < self._watched.poll:
            self._spare_the_wait()
        elif state.phase is Phase.RUNNING:
            self._heed_drains(state)

    def outlook(self) -> Outlook:
        """Who may still come. Raises SlurmError, StoreError."""
        return outlook(self._queue(), self._agents())

    def _queue(self) -> list[QueuedJob]:
        ours = {
            *(job["job"] for job in submitted(self._watched.paths)),
            *(job.rpartition(".")[0] for job in self._agents()),
        }
        return [job for job in scheduler.queue() if job.id in ours or job.array in ours]

    def _agents(self) -> Counter[str]:
        """How many agents were seen of each incarnation of a job, dead ones too: those come no more."""
        return Counter(lease.member.job for lease in read_leases(self._watched.paths.leases).values())

    def _spare_the_wait(self) -> None:
        """Start jobs that are held back twice in a row: the node that they left is free by then."""
        held = held_back(self._queue())
        for job in held & self._held:
            scheduler.start_now(job)
            self._report(f"job {job} was requeued and is spared SLURM's wait before it starts again")
        self._held = held - self._held

    def _heed_drains(self, state: State) -> None:
        inside = {p.node for p in state.participants}
        leases = read_leases(self._watched.paths.leases)
        hosts = {leases[node].member.machine for node in inside & leases.keys()}
        for host, why in scheduler.draining(sorted(hosts)).items():
            self._report(f"SLURM drains {host} ({why}): its workers come to a step's end, and the others go on")
            steer_run(self._watched.paths, self._watched.writer, partial(drain, nodes=(host,)))


def _changed(before: State, state: State) -> bool:
    return (before.phase, before.round) != (state.phase, state.round)


def _missing(state: State) -> bool:
    return len(state.participants) < state.most and bool(set(state.spent) & {Cause.NODE.value, Cause.LEAVE.value})
