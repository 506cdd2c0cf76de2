"""The part of an agent in the search for stragglers; see `hpcelastic.health.stragglers`.

Each agent publishes the work fractions of its workers in a file, which it replaces when one of them changes. The agent
of rank 0 compares those of all ranks.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hpcelastic.agent.periodic import PeriodicTask
from hpcelastic.agent.session import Session
from hpcelastic.agent.settings import StragglerSettings
from hpcelastic.agent.stacks import WorkersOfRound
from hpcelastic.agent.watchdog import Watchdog
from hpcelastic.agent.worker import Worker
from hpcelastic.health.stragglers import WorkFraction, stragglers
from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.protocol.events import StragglersFound
from hpcelastic.protocol.findings import Slow
from hpcelastic.protocol.settings import RENEWALS
from hpcelastic.protocol.state import Phase, State
from hpcelastic.protocol.stragglers import record_stragglers
from hpcelastic.storage import files
from hpcelastic.storage.paths import safe_name
from hpcelastic.worker.collective_watch import Samples

_RENEWALS = 2
"""The shortest time over which a work fraction is taken, in renewals of the lease."""

_CHECKS = 4
"""Number of checks within this time."""

_LASTING = 2
"""A node is excluded once its rank has been a straggler for so many times that time, because one that evaluates or
saves is slow for a while."""

_CHANGE = 0.04
"""A work fraction is published again once it has changed by so much."""


@dataclass(frozen=True)
class _Record:
    """The time and the steps of a worker, as they were at ``time``."""

    time: float
    steps: int | None
    """None if the worker writes no marks."""

    samples: Samples


@dataclass(frozen=True)
class _NodeFractions:
    """The content of a file: the work fractions of one node's workers in one round."""

    round: int
    fractions: tuple[WorkFraction, ...]


class FractionMeter:
    """Measures the work fraction of a worker in a round, over the newest ``seconds``, and at least ``steps`` steps."""

    def __init__(self, seconds: float, steps: int) -> None:
        self._seconds, self._steps = seconds, steps
        self._records: deque[_Record] = deque()

    def reset(self) -> None:
        """Forget what was observed."""
        self._records.clear()

    def observe(self, now: float, steps: int | None, samples: Samples) -> tuple[float, int] | None:
        """Take account of newer numbers. Return the work fraction and the number of its samples; None at first."""
        newest, records = _Record(now, steps, samples), self._records
        if records and (samples.number < records[-1].samples.number or (steps is None) != (records[-1].steps is None)):
            records.clear()
        if len(records) > 1 and steps is not None and records[-2].steps == records[-1].steps == steps:
            records.pop()  # it is between two others with the same number of steps
        records.append(newest)
        while len(records) > 2 and self._suffices(records[1], newest):
            records.popleft()
        first = records[0].samples
        number, seconds = samples.number - first.number, samples.seconds - first.seconds
        if not self._suffices(records[0], newest) or number <= 0 or seconds <= 0:
            return None
        return 1 - (samples.waited - first.waited) / seconds, number

    def _suffices(self, old: _Record, new: _Record) -> bool:
        enough = old.steps is None or new.steps is None or new.steps - old.steps >= self._steps
        return enough and new.time - old.time >= self._seconds


class StragglerWatch:
    """Publishes the work fractions of this node's workers. If it has rank 0, it compares those of all ranks."""

    def __init__(
        self,
        session: Session,
        settings: StragglerSettings,
        watchdog: Watchdog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._settings, self._watchdog, self._clock = session, settings, watchdog, clock
        self._seconds = _RENEWALS * session.spec.settings.rendezvous.first_lease / RENEWALS
        self._state: State | None = None
        """The newest state; None unless a round of this node runs."""

        self._workers: dict[int, FractionMeter] = {}
        """The fractions of the workers of the round, by rank."""

        self._task = PeriodicTask("stragglers", self._seconds / _CHECKS, clock)
        self._published = _NodeFractions(0, ())
        self._number = 0
        """Number of the files that were published; the number of the newest one."""

        self._read: dict[str, _NodeFractions] = {}
        """The content of the files of the members of the round, by name."""

        self._slow = Slow(0)
        """The stragglers that this agent has found last."""

        self._since: dict[int, float] = {}
        """The time since which each of them is one."""

        self._reported: set[int] = set()
        """The ranks of the round that people were told of."""

    # In the agent's thread

    def seconds_left(self) -> float | None:
        """Return the seconds until the next check; None if there is nothing to watch."""
        return self._task.seconds_left()

    def observe(self, state: State) -> None:
        """Take account of the newest state of the run."""
        before = self._state
        here = self._session.member.node in state.ranks
        runs = self._settings.action != "ignore" and state.phase is Phase.RUNNING and here
        self._state = state if runs and state.world_size > 1 else None
        begins = self._state is not None and (before is None or before.round != state.round)
        if begins:
            self._workers = {}
        self._task.plan(self._state is not None, anew=begins)

    def check(self, found: WorkersOfRound) -> None:
        """Publish and compare fractions if that is due. Returns at once."""
        state, now = self._state, self._clock()
        if state is None or not self._task.is_due() or found.round != state.round:
            return  # workers of another round are starting
        fractions = tuple(fraction for worker in found.workers if (fraction := self._fraction(worker, now)) is not None)
        ours = _NodeFractions(state.round, fractions)
        if self._compares(state) or _differ(self._published, ours):
            self._task.begin(lambda: self._exchange(state, ours))

    def _fraction(self, worker: Worker, now: float) -> WorkFraction | None:
        observed = self._workers.setdefault(worker.rank, FractionMeter(self._seconds, self._settings.steps))
        progress = self._watchdog.progress(worker)
        if progress.has_steps and progress.steps is None:  # in a phase, it does not make steps
            observed.reset()
            return None
        found = observed.observe(now, progress.steps, self._watchdog.samples(worker))
        return None if found is None else WorkFraction(worker.rank, self._session.member.name, *found)

    def _compares(self, state: State) -> bool:
        """Return whether this node has rank 0."""
        return state.participants[0].node == self._session.member.node

    # In a thread of its own, because the filesystem may hang

    def _exchange(self, state: State, ours: _NodeFractions) -> None:
        self._publish(ours)
        if self._compares(state):
            self._compare(state)

    def _publish(self, ours: _NodeFractions) -> None:
        """Replace the file of this node if a fraction has changed."""
        if not _differ(self._published, ours):
            return
        paths, node, self._number = self._session.spec.paths, self._session.member.node, self._number + 1
        files.make_directory(paths.work_fractions, within=paths.root)
        files.publish(paths.work_fraction(node, self._number), files.to_json(encode(ours)), durable=False)
        self._published = ours
        if self._number > 1:
            files.remove(paths.work_fraction(node, self._number - 1))

    def _compare(self, state: State) -> None:
        fractions = self._read_fractions(state)
        if 2 * len(fractions) < state.world_size:
            return  # the median would not be that of the round
        if self._slow.round != state.round:
            self._slow, self._since, self._reported = Slow(state.round), {}, set()
        found = stragglers(fractions, self._settings.threshold, self._slow.ranks)
        ranks, now = tuple(sorted(each.rank for each in found)), self._clock()
        self._since = {rank: self._since.get(rank, now) for rank in ranks}
        changed = ranks != self._slow.ranks
        if changed:
            self._slow = Slow(state.round, ranks, "; ".join(each.text for each in found[:3]))
            self._session.log(StragglersFound(round=state.round, ranks=ranks, text=self._slow.text))
            if {*ranks} - self._reported:
                self._reported |= {*ranks}
                self._session.report(f"round {state.round}: {self._slow.text}")
        slow, exclude = self._slow, list[int]()
        if self._settings.action == "exclude":
            exclude = [rank for rank, since in self._since.items() if now - since >= _LASTING * self._seconds]
            self._since.update(dict.fromkeys(exclude, now))  # tried again after a while, when a node may stand by
        if changed or exclude:
            self._session.call_rendezvous(
                lambda rendezvous: rendezvous.change(lambda newest: record_stragglers(newest, slow, exclude))
            )

    def _read_fractions(self, state: State) -> list[WorkFraction]:
        """Return the published fractions of the ranks of the round. A file is read once, because it never changes."""
        paths, newest = self._session.spec.paths, dict[str, str]()
        members = {safe_name(participant.node) for participant in state.participants}
        for name in sorted(files.names(paths.work_fractions)):
            node = paths.owner_of_fraction(name)
            if node in members:
                newest[node] = name  # of two files of a node the later one
        self._read = {name: self._read[name] for name in newest.values() if name in self._read}
        for name in newest.values():
            if name not in self._read and (data := files.read_json(paths.work_fractions / name)) is not None:
                with contextlib.suppress(DecodeError):  # of another version
                    self._read[name] = decode(_NodeFractions, data)
        return [fraction for each in self._read.values() if each.round == state.round for fraction in each.fractions]


def _differ(old: _NodeFractions, new: _NodeFractions) -> bool:
    """Return whether other agents need the new fractions."""
    before, after = ({fraction.rank: fraction.worked for fraction in each.fractions} for each in (old, new))
    if old.round != new.round:
        return bool(after)
    if before.keys() != after.keys():
        return True
    return any(abs(before[rank] - worked) >= _CHANGE for rank, worked in after.items())
