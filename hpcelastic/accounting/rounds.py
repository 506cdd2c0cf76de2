"""The rounds of a run, assembled from the logs of all its agents. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpcelastic.accounting.journal import SECOND, Journal, Log
from hpcelastic.protocol.events import (
    Decided,
    Fenced,
    HangExamined,
    PeerSuspected,
    StateChanged,
    TrainingTotals,
    WorkerEnded,
    WorkersParked,
    WorkersStarted,
    WorkersStopped,
)
from hpcelastic.protocol.state import Cause, Phase

SIGN_WINDOW = 60 * SECOND
"""The time before the loss of a node in which signs of its death count. An older one was a passing disturbance."""


@dataclass(frozen=True)
class Training:
    """The training of a round, as one worker has seen it. Times are in microseconds; None if they are unknown."""

    node: str = ""
    entered: int | None = None
    group: int | None = None
    restored: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    done: int | None = None
    """The time at which there was no further step to make."""

    source: str | None = None
    steps: int = 0
    """The number of calls of ``should_stop()``."""

    before: int | None = None
    """The number of steps before the first call; None if it is unknown."""

    samples: tuple[int, ...] = ()
    """Microseconds from the first call to the calls with the numbers 2, 4, 8 and so on."""

    saves: int = 0
    saving: int = 0
    compiling: int = 0
    saved_step: int | None = None
    losses: tuple[tuple[float, ...], ...] = ()
    """Pairs of a step and a loss."""

    @property
    def time_of_steps(self) -> int:
        """The microseconds from the first call of ``should_stop()`` to the end of the last step that is complete."""
        return 0 if self.first_step is None or self.end is None else max(0, self.end - self.first_step)

    @property
    def end(self) -> int | None:
        """The end of the last step that is complete."""
        return self.last_step if self.done is None else self.done

    def time_of_call(self, number: int) -> int:
        """Return the microseconds from the first call to that with ``number``, interpolated between the samples."""
        if number <= 1 or self.first_step is None or self.last_step is None:
            return 0
        if number > self.steps:
            return self.time_of_steps
        known = {
            1: 0,
            **{2 << i: each for i, each in enumerate(self.samples)},
            self.steps: self.last_step - self.first_step,
        }
        lower = max(each for each in known if each <= number)
        upper = min(each for each in known if each >= number)
        if lower == upper:
            return known[lower]
        return known[lower] + (known[upper] - known[lower]) * (number - lower) // (upper - lower)


@dataclass(frozen=True)
class Round:
    """One round of a run. Times are in microseconds since the epoch; None if they are unknown."""

    number: int
    began: int | None = None
    """The time at which it was decided that the round begins."""

    ended: int | None = None
    """The time at which it was decided that the round ends."""

    cause: Cause | None = None
    reason: str = ""
    """Why it has ended."""

    lost: str = ""
    """The node, with its incarnation, whose loss has ended it."""

    evidence: str = ""
    members: frozenset[str] = frozenset()
    """The names of its nodes, as far as they are known."""

    faulty: int | None = None
    """The time of the first sign of the fault that has ended it; None if no fault has."""

    hung: bool = False
    """Whether it was ended because it made no progress."""

    succeeded: bool = False
    training: Training | None = None
    """None if no worker has told of its steps. A worker of a script with marks that has ended before them has made no
    step."""

    redone: int = 0
    """The number of its first steps that an earlier round had made already."""

    @property
    def steps(self) -> int:
        """The number of steps that are complete."""
        if self.training is None or not self.training.steps:
            return 0
        return self.training.steps if self.training.done is not None else self.training.steps - 1

    @property
    def reached(self) -> int:
        """The number of steps that are complete at its end, over all rounds; 0 if it is unknown."""
        return 0 if self.training is None or self.training.before is None else self.training.before + self.steps

    @property
    def reported(self) -> tuple[str, str, str]:
        """The failure in the reason: ``rank N``, the name of its node, and its message; empty for another reason."""
        rank, _, rest = self.reason.partition(" failed on ")
        node, _, message = rest.partition(": ")
        return (rank, node, message) if rest else ("", "", "")

    @property
    def failed(self) -> bool:
        """Whether the failure of a worker or the loss of a node has ended it."""
        return self.cause in (Cause.WORKER, Cause.NODE)


@dataclass
class _Facts:
    """The events of one round."""

    began: list[int] = field(default_factory=list)
    ends: list[tuple[int, StateChanged | Decided]] = field(default_factory=list)
    members: set[str] = field(default_factory=set)
    worker_ends: list[int] = field(default_factory=list)
    hangs: list[int] = field(default_factory=list)
    fenced: list[int] = field(default_factory=list)
    totals: dict[str, tuple[Log, TrainingTotals]] = field(default_factory=dict)
    told: bool = False
    """Whether an agent has told of the training of its workers, because they have stopped or had no marks so far."""

    succeeded: bool = False


def rounds_of(journal: Journal) -> Mapping[int, Round]:
    """Return the rounds of the run, by number, except those that the fold has."""
    facts: dict[int, _Facts] = {}
    suspected: dict[str, list[int]] = {}
    for log in journal.logs:
        for entry in log.entries:
            if isinstance(entry.event, PeerSuspected):
                suspected.setdefault(entry.event.peer, []).append(entry.time)
            elif number := getattr(entry.event, "round", 0):
                _add(facts.setdefault(number, _Facts()), log, entry.time, entry.event)
        if journal.totals and log.node in journal.totals:
            totals = journal.totals[log.node]
            found = facts.setdefault(totals.round, _Facts())
            if not totals.marked:
                found.told = True
            elif log.node not in found.totals or found.totals[log.node][1].steps < totals.steps:
                found.totals[log.node] = log, totals
    fold = journal.fold
    numbers = sorted(number for number in facts if fold is None or number >= fold.kept)
    rounds = {number: _round(number, facts[number], suspected) for number in numbers}
    furthest = fold.steps if fold else 0
    if furthest or any(each.steps for each in rounds.values()):  # the script writes marks
        for number in numbers:
            if facts[number].told and rounds[number].training is None:
                rounds[number] = replace(rounds[number], training=Training())
    return _with_repetitions(rounds, furthest)


def _add(facts: _Facts, log: Log, time: int, event: object) -> None:
    match event:
        case StateChanged(phase=phase) | Decided(phase=phase):
            if phase is Phase.RUNNING:
                facts.began.append(time)
            else:
                facts.ends.append((time, event))
            facts.succeeded |= phase is Phase.SUCCEEDED
            if isinstance(event, Decided) and event.members is not None:
                facts.members |= set(event.members)
        case WorkersStarted():
            facts.members.add(log.name)
        case WorkerEnded(exit_code=exit_code, requested=requested) if exit_code and not requested:
            facts.worker_ends.append(time)
        case HangExamined(action=action) if action in ("restart", "exclude"):
            facts.hangs.append(time)
        case Fenced():
            facts.fenced.append(time)
        case WorkersStopped() | WorkersParked():
            facts.told = True
        case TrainingTotals():
            facts.totals[log.node] = log, event


def _round(number: int, facts: _Facts, suspected: Mapping[str, Sequence[int]]) -> Round:
    began, ended = min(facts.began, default=None), min((time for time, _ in facts.ends), default=None)
    # Of the versions that follow the round, the first one tells why it has ended. Not each log has it.
    ends = [event for _, event in sorted(facts.ends, key=lambda each: (each[1].version, each[0]))]
    first = next((event for event in ends if event.cause), ends[0] if ends else None)
    evidence = next((event.evidence for event in ends if isinstance(event, Decided) and event.evidence), "")
    training = _training(facts.totals)
    found = Round(
        number,
        began,
        ended,
        first.cause if first else None,
        first.reason if first else "",
        (first.lost or "") if first else "",
        evidence,
        frozenset(facts.members),
        hung=bool(facts.hangs),
        succeeded=facts.succeeded,
        training=training,
    )
    return replace(found, faulty=_first_sign(found, facts, suspected))


def _first_sign(found: Round, facts: _Facts, suspected: Mapping[str, Sequence[int]]) -> int | None:
    """Return the time of the first sign of the fault that has ended the round; None if no fault has."""
    if found.ended is None or not found.failed:
        return None
    seen = [time for time in suspected.get(found.lost, ()) if time >= found.ended - SIGN_WINDOW]
    signs = [*facts.worker_ends, *facts.fenced, *seen]
    began = max(found.began or 0, (found.training.last_step or 0) if found.training and not found.hung else 0)
    return min([max(time, began) for time in signs if time <= found.ended], default=found.ended)


def _training(totals: Mapping[str, tuple[Log, TrainingTotals]]) -> Training | None:
    """Return what the worker with the most steps has told. Its saves are those of the worker that has saved longest."""
    if not totals:
        return None
    log, best = max(totals.values(), key=lambda each: (each[1].steps, each[1].saving))
    slowest = max((each for _, each in totals.values()), key=lambda each: each.saving)
    return Training(
        node=log.node,
        entered=log.at(best.entered),
        group=log.at(best.group),
        restored=log.at(best.restored),
        first_step=log.at(best.first_step),
        last_step=log.at(best.last_step),
        done=log.at(best.done),
        source=best.source,
        steps=best.steps,
        before=best.before,
        samples=tuple(round(each * SECOND) for each in best.samples),
        saves=slowest.saves,
        saving=round(slowest.saving * SECOND),
        compiling=round(best.compiling * SECOND),
        saved_step=max((each.saved_step for _, each in totals.values() if each.saved_step is not None), default=None),
        losses=next((each.losses for _, each in totals.values() if each.losses), ()),
    )


def _with_repetitions(rounds: dict[int, Round], furthest: int) -> dict[int, Round]:
    """Note for each round how many of its first steps had been made before. Earlier rounds had made ``furthest``."""
    for number, each in rounds.items():
        before = each.training.before if each.training else None
        if before is None:
            continue
        rounds[number] = replace(each, redone=min(max(0, furthest - before), each.steps))
        furthest = max(furthest, before + each.steps)
    return rounds
