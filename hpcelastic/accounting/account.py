"""The account of a run: node time by category, and the figures that follow from it. Pure.

The categories sum exactly to the time of all nodes, in microseconds, however incomplete the logs are: what they do not
tell is a category of its own.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hpcelastic.accounting.categories import Category
from hpcelastic.accounting.folded import KEPT_FAULTS, EndedAgent, Fault, FaultSums, Fold, Sums, needed, sums_of
from hpcelastic.accounting.journal import SECOND, Job, Journal
from hpcelastic.accounting.rounds import Round, rounds_of
from hpcelastic.accounting.segments import Life, Segment, lives_of, segments_of
from hpcelastic.protocol.events import RunEnded, StateChanged
from hpcelastic.protocol.state import Cause

_NOT_LOST = (Category.USEFUL, Category.CHECKPOINT, Category.SPARE, Category.QUEUE, Category.UNKNOWN)
"""The categories that are no cost of the end of a round."""


@dataclass(frozen=True)
class Account:
    """The account of a run. Times are in microseconds."""

    begin: int
    end: int
    categories: Mapping[Category, int]
    """Node time by category. It has every category."""

    segments: tuple[Segment, ...]
    """Without the time that was folded."""

    faults: tuple[Fault, ...]
    """Of the rounds that were folded, only the newest `KEPT_FAULTS` faults."""

    rounds: Mapping[int, Round]
    """Without the rounds that were folded."""

    fault_sums: FaultSums
    """Sums over all faults."""

    sums: Sums
    """Sums over all rounds."""

    final: bool
    """Whether the run has ended."""

    at_risk: int | None
    """Number of steps of a running round that are not saved; None if it is unknown or the run has ended."""

    abandoned: bool = False
    """Whether no agent is left, although the run has not ended."""

    @property
    def total(self) -> int:
        """The time of all nodes that were requested or allocated."""
        return sum(self.categories.values())

    @property
    def marked(self) -> bool:
        """Whether the script writes progress marks. If not, the time in which workers run cannot be divided."""
        return self.sums.calls > 0

    @property
    def allocated(self) -> int:
        """The time of all nodes that were allocated."""
        return self.total - self.categories[Category.QUEUE]

    @property
    def goodput(self) -> float | None:
        """The useful part of the allocated node time; None if it is unknown."""
        return self.categories[Category.USEFUL] / self.allocated if self.allocated and self.marked else None

    @property
    def ettr(self) -> float | None:
        """The effective training time ratio: wall time of steps that count, by wall time since the submission.

        Source: Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", 2024.
        """
        return self.sums.useful_wall / (self.end - self.begin) if self.end > self.begin and self.marked else None

    @property
    def mttf(self) -> float | None:
        """The mean time to a failure in seconds, of the time in which rounds ran; None without a failure."""
        return self.sums.running / SECOND / self.fault_sums.count if self.fault_sums.count else None

    @property
    def mttf_interval(self) -> tuple[float, float | None]:
        """The 90 % confidence interval of `mttf` in seconds; the upper bound is None without a failure."""
        least, most = poisson_interval(self.fault_sums.count, 0.90)
        seconds = self.sums.running / SECOND
        return seconds / most, seconds / least if least else None

    @property
    def save_cost(self) -> float | None:
        """The mean time in seconds for which a save stops the training; None without a save."""
        return self.sums.saving / SECOND / self.sums.saves if self.sums.saves else None

    @property
    def save_interval(self) -> float | None:
        """The mean time in seconds from one save to the next; None without a save."""
        return self.sums.stepping / SECOND / self.sums.saves if self.sums.saves else None

    @property
    def best_save_interval(self) -> float | None:
        """The time in seconds from one save to the next with the least loss; None if it is unknown.

        Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", 1974.
        """
        if self.save_cost is None or self.mttf is None:
            return None
        return math.sqrt(2 * self.save_cost * self.mttf)

    @property
    def predicted_ettr(self) -> float | None:
        """The ETTR that follows from the run's own rates, without the time in the queue; None if it is unknown.

        It is 1 - r (u + w / 2), for r failures in a second, of which each costs u seconds and half of the time w
        between two saves. A run that keeps its state in memory loses less. Source: Kokolis et al., as for `ettr`.
        """
        if self.mttf is None or not self.fault_sums.resumed:
            return None
        restart = self.fault_sums.stopped / self.fault_sums.resumed / SECOND
        return max(0.0, 1 - (restart + (self.save_interval or 0.0) / 2) / self.mttf)


def account(journal: Journal) -> Account:
    """Return the account of a run."""
    rounds, lives, final = rounds_of(journal), lives_of(journal), _is_final(journal)
    segments = [segment for life in lives for segment in segments_of(life, rounds)]
    segments += _missing(journal, lives, final)
    begin = min([*(segment.begin for segment in segments), *(job.submitted for job in journal.jobs)], default=0)
    end = max([*(segment.end for segment in segments), begin])
    before = journal.fold or _nothing(begin)
    costs = _costs(segments)
    newest = rounds[max(rounds)] if rounds else None
    faults = [_fault(each, rounds, costs.get(each.number, {})) for each in rounds.values() if each.failed]
    return Account(
        begin=min(begin, before.begin),
        end=end,
        categories=_with_time_of(before.categories, segments, before.until, end),
        segments=tuple(segment for segment in segments if segment.end > before.until),
        faults=(*before.faults, *faults),
        fault_sums=before.fault_sums + sums_of(faults),
        rounds=rounds,
        sums=sum(_sums(rounds, end).values(), before.sums),
        final=final,
        at_risk=None if final or newest is None else _at_risk(newest),
        abandoned=journal.abandoned and not final,
    )


def fold(journal: Journal, found: Account, kept: int, logs: Collection[str]) -> Fold | None:
    """Return the part of an account with the rounds before ``kept``, and the time until the round after it began.

    ``logs`` has the names of all agents whose logs are there. Return None if the beginnings of both rounds are unknown,
    or if the journal's own fold has these rounds.
    """
    rounds = found.rounds
    began, until = (rounds[number].began if number in rounds else None for number in (kept, kept + 1))
    if began is None or until is None:
        return None
    before = journal.fold or _nothing(found.begin)
    if until <= before.until:
        return None
    sums, faults = _sums(rounds, found.end), [fault for fault in found.faults if fault.round < kept]
    known = {agent.node for agent in before.ended}
    ended, present = list(before.ended), set()
    for life in lives_of(journal):
        if life.end >= began:
            present.add(life.started_by)
        elif life.log.node not in known:
            ended.append(
                EndedAgent(
                    life.log.node,
                    life.begin,
                    life.end,
                    life.machine,
                    life.started_by,
                    life.job_nodes,
                    ended_before=kept,
                )
            )
    return Fold(
        kept,
        until,
        found.begin,
        _with_time_of(before.categories, found.segments, before.until, until),
        tuple(faults[-KEPT_FAULTS:]),
        before.fault_sums + sums_of([fault for fault in faults if fault.round >= before.kept]),
        sum((each for number, each in sums.items() if number < kept), before.sums),
        max([before.steps, *(each.reached for number, each in rounds.items() if number < kept)]),
        needed(ended, logs, present),
    )


def _nothing(begin: int) -> Fold:
    """Return the fold of no rounds."""
    return Fold(0, begin, begin, {}, (), FaultSums(), Sums(), 0, ())


def _with_time_of(
    categories: Mapping[Category, int], segments: Iterable[Segment], begin: int, end: int
) -> dict[Category, int]:
    """Return ``categories`` with the time of segments between ``begin`` and ``end``."""
    found = {category: categories.get(category, 0) for category in Category}
    for segment in segments:
        found[segment.category] += max(0, min(segment.end, end) - max(segment.begin, begin))
    return found


def _sums(rounds: Mapping[int, Round], end: int) -> dict[int, Sums]:
    """Return the sums of each round. A round whose end is unknown lasts until the next one, or until ``end``."""
    found = {}
    for number, each in rounds.items():
        following = rounds.get(number + 1)
        ended = each.ended or (following.began if following else None) or end
        running = 0 if each.began is None else max(0, ended - each.began)
        training = each.training
        if training is None:
            found[number] = Sums(running=running)
        else:
            found[number] = Sums(
                _useful_wall(each),
                running,
                training.steps,
                training.time_of_steps,
                training.saves,
                training.saving,
            )
    return found


def _is_final(journal: Journal) -> bool:
    newest = max(
        (
            (entry.event.version, entry.event.phase.final)
            for log in journal.logs
            for entry in log.entries
            if isinstance(entry.event, StateChanged)
        ),
        default=(0, False),
    )
    ended = any(isinstance(entry.event, RunEnded) for log in journal.logs for entry in log.entries)
    return newest[1] or (ended and newest[0] == 0)


def _costs(segments: Iterable[Segment]) -> Mapping[int, Mapping[Category, int]]:
    """Return the node time by the round that has led to it, and by category."""
    found: dict[int, Counter[Category]] = {}
    for segment in segments:
        found.setdefault(segment.after, Counter())[segment.category] += segment.duration
    return found


def _missing(journal: Journal, lives: Sequence[Life], final: bool) -> list[Segment]:
    """Return the time of nodes that a job has asked for and that did not run: in segments without a node."""
    found = list[Segment]()
    for job in journal.jobs:
        ours = [life for life in lives if life.job == job.id]
        nodes = job.nodes or max((life.job_nodes or 0 for life in ours), default=0) or journal.wanted
        end = journal.end if not final and not ours else max((life.end for life in ours), default=journal.end)
        found += _gaps(job, nodes, ours, end)
    return found


def _gaps(job: Job, nodes: int, lives: Iterable[Life], end: int) -> list[Segment]:
    """Return the times at which fewer agents of a job ran than it has nodes: one segment for each missing agent."""
    changes: Counter[int] = Counter({job.submitted: 0, end: 0})
    for life in lives:
        changes[max(life.begin, job.submitted)] += 1
        changes[max(life.end, job.submitted)] -= 1
    found, present = [], 0
    for begin, until in pairwise(sorted(changes)):
        present += changes[begin]
        until = min(until, end)
        found += [Segment("", begin, until, Category.QUEUE, 0)] * max(0, nodes - present) * (until > begin)
    return found


def _useful_wall(round: Round) -> int:
    """Return the wall time of the steps of a round that count."""
    training = round.training
    if training is None:
        return 0
    redone = training.time_of_call(round.redone + 1)
    return max(0, training.time_of_steps - redone - training.saving - training.compiling)


def _at_risk(round: Round) -> int | None:
    """Return how many steps would be lost now."""
    training = round.training
    if training is None or training.before is None:
        return None
    done = training.before + round.steps
    return done - max(training.before, training.saved_step or 0)


def _fault(round: Round, rounds: Mapping[int, Round], following_time: Mapping[Category, int]) -> Fault:
    """Return the fault that has ended a round, to which ``following_time`` of the nodes is due."""
    time = round.faulty if round.faulty is not None else round.ended or 0
    following = rounds.get(round.number + 1)
    training = following.training if following else None
    new = None
    if following is not None and training is not None and training.first_step is not None:
        new = training.first_step + training.time_of_call(following.redone + 1)
    return Fault(
        round.number,
        time,
        round.cause or Cause.WORKER,
        round.hung,
        round.reason,
        round.lost.rpartition("@")[0] or round.reported[1],
        {category: duration for category, duration in following_time.items() if category not in _NOT_LOST},
        None if new is None else max(0, new - time),
    )


def poisson_interval(count: int, confidence: float) -> tuple[float, float]:
    """Return the exact confidence interval of the mean of a Poisson distribution of which ``count`` was observed.

    Source: F. Garwood, "Fiducial limits for the Poisson distribution", Biometrika 28, 1936.
    """
    tail = (1 - confidence) / 2
    least = 0.0 if count == 0 else _solve(lambda mean: 1 - _poisson_below(count, mean), tail, count)
    return least, _solve(lambda mean: 1 - _poisson_below(count + 1, mean), 1 - tail, count + 1)


def _poisson_below(count: int, mean: float) -> float:
    """Return the probability of fewer than ``count`` events."""
    return math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count)) if mean else 1.0


def _solve(rising: Callable[[float], float], value: float, near: int) -> float:
    """Return where a rising function has a ``value``, by bisection."""
    low, high = 0.0, 10.0 * (near + 10)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return (low + high) / 2
