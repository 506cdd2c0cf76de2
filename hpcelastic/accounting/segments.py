"""The activity of each node at each time: segments without gaps for each agent. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcelastic.accounting.categories import Category
from hpcelastic.accounting.folded import EndedAgent
from hpcelastic.accounting.journal import SECOND, Entry, Journal, Log
from hpcelastic.accounting.rounds import SIGN_WINDOW, Round, Training
from hpcelastic.protocol.events import (
    AgentEnded,
    AgentStarted,
    Decided,
    Fenced,
    Leaving,
    PeerSuspected,
    RunEnded,
    StateChanged,
    WorkerEnded,
    WorkersParked,
    WorkersStarted,
    WorkersStopped,
)
from hpcelastic.protocol.state import Phase, job_start


@dataclass(frozen=True)
class Segment:
    """A part of the time of one agent. Times are in microseconds since the epoch."""

    node: str
    begin: int
    end: int
    category: Category
    after: int
    """The number of the round whose end has led to it; 0 before the first round. For useful time, the round before."""

    @property
    def duration(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Life:
    """The time in which one agent has occupied its node."""

    log: Log
    begin: int
    end: int
    last: int
    """The time of its last own event. What it did after that is known only from others."""

    machine: str
    started_by: str = ""
    """The job that has started it, and its restart count, as ``JOB.RESTART``; empty outside of SLURM."""

    job_nodes: int | None = None
    job_start: float | None = None
    """When SLURM started the job, in seconds since the epoch."""

    death: "Death | None" = None
    """None if no other agent has decided that it is dead."""

    @property
    def job(self) -> str:
        """The id of its job, without the restart count; empty outside of SLURM."""
        return job_start(self.started_by)[0]

    @property
    def start(self) -> int:
        """When SLURM started the job; the beginning of the life if that is unknown or later."""
        return self.begin if self.job_start is None else min(self.begin, round(self.job_start * SECOND))


@dataclass(frozen=True)
class Death:
    """The death of an agent, as the other agents have logged it."""

    round: int
    """The round that its death has ended."""

    noticed: int
    """The time of the first sign of its death. Without a sign, that of the decision."""

    renewed: int | None
    """When the other agents have last seen a renewal of its lease; None if that is unknown."""


def lives_of(journal: Journal) -> list[Life]:
    """Return the life of each agent, by its beginning."""
    deaths, ended = _deaths(journal), journal.fold.ended if journal.fold else ()
    before, latest = {agent.node for agent in ended}, _latest(journal)
    found = [
        _life(log, journal, deaths.get(log.node), latest)
        for log in journal.logs
        if log.entries and log.node not in before
    ]
    found += [_ended_life(agent) for agent in ended]
    found.sort(key=lambda life: (life.begin, life.log.node))
    return _with_starts(_until_next(found))


def _latest(journal: Journal) -> int:
    """Return the latest time at which an agent may have lived."""
    times = [time for time in (journal.now, journal.last_sign) if time is not None]
    return min(times, default=journal.end)


def _deaths(journal: Journal) -> Mapping[str, Death]:
    """Return the death of each agent that other agents have decided to be dead."""
    lost: dict[str, list[tuple[int, int]]] = {}
    signs: dict[str, list[int]] = {}
    renewed: dict[str, int] = {}
    for log in journal.logs:
        for entry in log.entries:
            match entry.event:
                case PeerSuspected(peer=node, sign=sign) if sign != "silent":
                    signs.setdefault(node, []).append(entry.time)
                case Decided(lost=node, round=number) | StateChanged(lost=node, round=number) if node:
                    lost.setdefault(node, []).append((entry.time, number))
                    if isinstance(entry.event, Decided) and entry.event.silence is not None:
                        renewed[node] = entry.time - round(entry.event.silence * SECOND)
    renewed |= journal.renewed or {}  # a node that has not seen an earlier renewal knows only when it saw the lease
    return {node: _death(min(decisions), signs.get(node, ()), renewed.get(node)) for node, decisions in lost.items()}


def _death(first: tuple[int, int], signs: Iterable[int], renewed: int | None) -> Death:
    time, number = first
    return Death(number, min([time, *(sign for sign in signs if time - SIGN_WINDOW <= sign <= time)]), renewed)


def _life(log: Log, journal: Journal, death: Death | None, latest: int) -> Life:
    first, last = log.entries[0].time, log.entries[-1].time
    started = next((each.event for each in log.entries if isinstance(each.event, AgentStarted)), None)
    ended = any(isinstance(each.event, AgentEnded) for each in log.entries)
    end = last
    if not ended:
        end = max(last, _unlogged_end(log, journal, latest) if death is None else death.noticed)
    if started is None:
        return Life(log, first, end, last, log.name, death=death)
    begin, machine = min(first, log.at(started.launched) or first), started.machine or log.name
    return Life(log, begin, end, last, machine, started.job or "", started.job_nodes, started.job_start, death)


def _unlogged_end(log: Log, journal: Journal, latest: int) -> int:
    """Return the end of an agent's life that no log tells, up to ``latest``.

    A decision names one lost node, although others may have died with it. A spare node may die without any decision.
    """
    renewed = (journal.renewed or {}).get(log.node)
    if journal.now is None:  # a later renewal is the copy of a file
        return renewed if renewed is not None and renewed <= latest else log.entries[-1].time
    if renewed is not None and renewed < journal.now - journal.expiry:
        return min(renewed, latest)
    return latest


def _ended_life(agent: EndedAgent) -> Life:
    log = Log(agent.node, (), None)
    return Life(log, agent.begin, agent.end, agent.end, agent.machine, agent.started_by, agent.job_nodes)


def _until_next(lives: Sequence[Life]) -> list[Life]:
    """Return lives, by their beginning, that end before the next agent of the node, or the next start of the job.

    The last own event of an agent is part of its life in any case.
    """
    starts: dict[str, dict[int, int]] = {}
    for life in lives:
        job, restart = job_start(life.started_by)
        of_job = starts.setdefault(job, {})
        of_job[restart] = min(life.start, of_job.get(restart, life.start))
    following: dict[str, Life] = {}
    found = []
    for life in reversed(lives):
        job, restart = job_start(life.started_by)
        ends = [life.end, *(start for number, start in starts[job].items() if job and number > restart)]
        if (after := following.get(life.log.name)) is not None:
            ends.append(after.begin if after.started_by == life.started_by else after.start)
        found.append(replace(life, end=max(life.last, min(ends))))
        following[life.log.name] = life
    return found[::-1]


def _with_starts(lives: Iterable[Life]) -> list[Life]:
    """Return lives that begin with the job, or with the end of the agent before on the same node of the job."""
    before: dict[tuple[str, str], Life] = {}
    found = []
    for life in lives:
        place = life.started_by, life.machine
        start = before[place].end if place in before else life.start
        if life.started_by:
            life = replace(life, begin=min(life.begin, start))
            before[place] = life
        found.append(life)
    return found


def segments_of(life: Life, rounds: Mapping[int, Round]) -> list[Segment]:
    """Return the segments of an agent's life: in order, without gaps, from its beginning to its end."""
    found: list[Segment] = []
    for begin, end, category, after in _parts(life, rounds):
        if found and found[-1].category is category and found[-1].after == after:
            begin = found.pop().begin
        if end > begin:
            found.append(Segment(life.log.node, begin, end, category, after))
    return found


def _parts(life: Life, rounds: Mapping[int, Round]) -> Iterator[tuple[int, int, Category, int]]:
    """Yield the parts of a life one after the other, some of them empty."""
    time, category, after = life.begin, Category.START, 0
    training: Round | None = None
    """The round in which the node's workers are."""

    for entry in life.log.entries:
        following = _following(entry, category, training, after, life, rounds)
        if following is None:
            continue
        if training is not None:
            end = _end_of_training(entry, training, time)
            yield from _split(time, end, training)
            if entry.time > end:
                yield end, entry.time, Category.STOP, training.number
        else:
            yield time, entry.time, category, after
        time = entry.time
        category, training, after = following
    yield from _last_parts(life, time, category, training, after)


def _last_parts(
    life: Life, time: int, category: Category, training: Round | None, after: int
) -> Iterator[tuple[int, int, Category, int]]:
    """Yield the parts of a life from ``time``, that of its last event that changes what the node does, to its end."""
    renewed = life.death.renewed if life.death is not None else None
    if training is not None and (renewed is None or training.training is not None):
        end = max(time, min(life.end, life.end if training.ended is None else training.ended))
        yield from _split(time, end, training)
        yield end, life.end, Category.UNKNOWN, training.number
        return
    lived = max(time, min(max(life.last, renewed or 0), life.end))
    if training is not None:
        yield from _split(time, lived, training)
    else:
        yield time, lived, category, after
    if life.death is not None and renewed is not None:
        yield lived, life.end, Category.DETECTION, life.death.round
    else:
        yield lived, life.end, Category.UNKNOWN, after


_Following = tuple[Category, Round | None, int]


def _following(
    entry: Entry, category: Category, training: Round | None, after: int, life: Life, rounds: Mapping[int, Round]
) -> _Following | None:
    """Return what the node does from an event on, and after which round; None if the event does not change that."""
    match entry.event:
        case AgentStarted() if category is Category.START:
            return Category.RENDEZVOUS, None, after
        case StateChanged(phase=Phase.RUNNING, round=number) if training is None:
            known = rounds.get(number)
            if known is not None and life.log.name in known.members:
                return Category.LAUNCH, known, number - 1
            return Category.SPARE, None, number - 1
        case StateChanged(phase=Phase.JOINING, round=number) if training is not None:
            stops_at_step = training.training is not None and not (training.failed or training.hung)
            return None if stops_at_step else (Category.STOP, None, number)
        case StateChanged(phase=Phase.JOINING, round=number) if category is not Category.STOP:
            return Category.RENDEZVOUS, None, number
        case StateChanged(phase=phase, round=number) if phase.final:
            return Category.STOP, None, number
        case RunEnded():
            return Category.STOP, None, training.number if training else after
        case WorkerEnded(exit_code=exit_code, requested=requested, round=number) if training is not None:
            return (Category.STOP, None, number) if exit_code and not requested else None
        case WorkersStarted(round=number) if training is None and number in rounds:
            return Category.LAUNCH, rounds[number], number - 1
        case WorkersStopped(round=number) | WorkersParked(round=number) | Fenced(round=number):
            return Category.RENDEZVOUS, None, number
        case Leaving() if training is None:
            return Category.STOP, None, after
    return None


def _end_of_training(entry: Entry, training: Round, begin: int) -> int:
    """Return when the workers have ended their part in the round, which the agent has noticed with ``entry``."""
    if training.failed or training.hung or training.training is None:
        return entry.time
    last = training.training.end  # they have stopped at the end of a step
    return entry.time if last is None else min(entry.time, max(begin, last))


def _split(begin: int, end: int, round: Round) -> Iterator[tuple[int, int, Category, int]]:
    """Yield the parts of the time in which a node's workers were in a round."""
    before, training = round.number - 1, round.training
    faulty = end
    if round.failed and round.faulty is not None:
        faulty = min(end, max(begin, round.faulty))
    if training is None:
        yield begin, faulty, Category.UNKNOWN, before
        yield faulty, end, Category.HANG if round.hung else Category.DETECTION, round.number
        return
    time = begin
    for until, category in _beginning(training):
        until = min(max(time, until), faulty)
        yield time, until, category, before
        time = until
    if training.first_step is None:
        yield time, faulty, Category.LAUNCH if faulty < end or round.ended else Category.UNKNOWN, before
    else:
        steps = min(max(time, training.end or time), faulty)
        yield from _steps(time, steps, round, training)
        if round.hung:
            faulty = steps
        # The rest is the part of a step that was cut off; or the running step, of which nobody knows how it ends.
        yield steps, faulty, Category.UNKNOWN if round.ended is None else Category.REDONE, round.number
    yield faulty, end, Category.HANG if round.hung else Category.DETECTION, round.number


def _beginning(training: Training) -> Iterator[tuple[int, Category]]:
    """Yield the end of each part of the round before its first step, with the category of the part."""
    ready = max(training.entered or 0, training.group or 0)
    if training.restored is not None and training.restored <= (training.first_step or training.restored):
        if ready:
            yield ready, Category.LAUNCH
        yield training.restored, Category.RESTORE if ready else Category.LAUNCH
    if training.first_step is not None:
        yield training.first_step, Category.LAUNCH


def _steps(begin: int, end: int, round: Round, training: Training) -> Iterator[tuple[int, int, Category, int]]:
    """Divide the time of the steps. The order within it is not that in which it happened."""
    before, left = round.number - 1, end - begin
    redone = min(left, training.time_of_call(round.redone + 1))
    left -= redone
    saving = min(left, training.saving)
    compiling = min(left - saving, training.compiling)
    for duration, category in (
        (redone, Category.REDONE),
        (compiling, Category.LAUNCH),
        (left - saving - compiling, Category.USEFUL),
        (saving, Category.CHECKPOINT),
    ):
        yield begin, begin + duration, category, before
        begin += duration
