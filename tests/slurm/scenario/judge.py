"""The judge of a run with faults. It uses the trace of the workers, the register, and the end of the run.

Pure. A verdict has the costs of the faults. An error of the run is raised as `Refusal`, with the notes that show it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.slurm.scenario.trace import Note, in_order


class Refusal(AssertionError):
    """The run has violated a property, or has not ended correctly."""


@dataclass(frozen=True)
class Evidence:
    """All records of a run that has ended."""

    notes: Sequence[Note]
    result: Mapping[str, Any]
    """Content of result.json."""

    members: Mapping[int, Sequence[str]]
    """By round: the nodes of the round in the register, in the order of ranks, one rank each."""

    steps: int
    digest: str
    """The final digest of an undisturbed run."""

    starts: Mapping[int, float] = field(default_factory=dict)
    """By round: when an agent first logged that it had started workers; seconds since the epoch."""

    published: Mapping[str, float] = field(default_factory=dict)
    """The remaining checkpoints, and when each was published; seconds since the epoch."""

    jobs: Sequence["Begin"] = ()
    """The times at which batch scripts began."""

    faults: Sequence["Fault"] = ()
    in_memory: bool = False
    """Whether workers keep their state in memory over rounds."""


@dataclass(frozen=True)
class Begin:
    """The start of a job's batch script."""

    node: str
    """The host's name."""

    wall: float
    """Seconds since the epoch."""


@dataclass(frozen=True)
class Fault:
    """A fault of the run, with its time."""

    name: str
    monotonic: float


@dataclass(frozen=True)
class Cost:
    """The cost of a fault."""

    fault: str
    seconds: float
    """The longest time without a step between the fault and the next fault."""

    steps: int
    """Number of steps that were trained again."""


@dataclass(frozen=True)
class Verdict:
    """The result for a correct run."""

    rounds: int
    """Number of rounds that have trained."""

    steps_lost: int
    """Number of repetitions of steps."""

    costs: tuple[Cost, ...]

    starts: tuple[float, ...] = ()
    """For each job that began after the first fault and whose first node has trained since: seconds until it did."""


def judge(evidence: Evidence) -> Verdict:
    """Return the costs of the run's faults. Raises Refusal if two groups ran at once or the end is wrong."""
    rounds = _by_round(evidence.notes)
    for check in (_one_view, _as_registered, _one_group, _quiet_afterwards, _resumed, _no_gap, _right_end):
        check(evidence, rounds)
    trained = Counter(step for notes in rounds.values() for step in _steps(notes))
    costs = tuple(_cost(fault, until, rounds) for fault, until in _spans(evidence.faults))
    again = sum(trained.values()) - len(trained)
    return Verdict(sum(1 for notes in rounds.values() if _steps(notes)), again, costs, tuple(_starts(evidence)))


Rounds = Mapping[int, Sequence[Note]]


def _by_round(notes: Iterable[Note]) -> dict[int, list[Note]]:
    """Return the notes by round, in the order of rounds, each ordered by time."""
    found: dict[int, list[Note]] = defaultdict(list)
    for note in in_order(notes):
        found[note.round].append(note)
    return dict(sorted(found.items()))


def _steps(notes: Iterable[Note]) -> set[int]:
    return {note.step for note in notes if note.kind == "step"}


def _one_view(_: Evidence, rounds: Rounds) -> None:
    """Check that all workers of a round agree about it, and that each rank is one process."""
    for round, notes in rounds.items():
        _refuse_unless(len({note.world_size for note in notes}) == 1, f"round {round} has two world sizes", notes)
        for rank in {note.rank for note in notes}:
            same = [note for note in notes if note.rank == rank]
            _refuse_unless(len({(n.node, n.pid) for n in same}) == 1, f"rank {rank} of round {round} ran twice", same)
            steps = [note.step for note in same if note.kind == "step"]
            in_turn = not steps or steps == list(range(steps[0], steps[0] + len(steps)))
            _refuse_unless(in_turn, f"rank {rank} of round {round} trained out of turn", same)
        did: dict[int, set[int]] = defaultdict(set)
        for note in notes:
            if note.kind == "step":
                did[note.step].add(note.rank)
        for step, ranks in did.items():
            whole = step == max(did) or len(ranks) == notes[0].world_size  # the last one may have been interrupted
            _refuse_unless(whole, f"step {step} of round {round} was done by ranks {sorted(ranks)} alone", notes)


def _as_registered(evidence: Evidence, rounds: Rounds) -> None:
    """Check that every node that trained in a round is in that round of the register."""
    for round, notes in rounds.items():
        members = evidence.members.get(round, ())
        strangers = [note for note in notes if note.node not in members[note.rank : note.rank + 1]]
        _refuse_unless(not strangers, f"round {round} is of {list(members)}, and others trained in it", strangers)


def _one_group(evidence: Evidence, rounds: Rounds) -> None:
    """Check that no worker of a round did anything after the first action of a later round."""
    last: Note | None = None
    for round, notes in rounds.items():
        both = [last, notes[0]] if last else []
        _refuse_unless(
            last is None or last.monotonic < notes[0].monotonic, f"round {round} began while an older one ran", both
        )
        start = evidence.starts.get(round)
        early = last is not None and start is not None and start <= last.wall
        _refuse_unless(not early, f"an agent started workers of round {round} at {start} while an older one ran", both)
        last = notes[-1]


def _quiet_afterwards(evidence: Evidence, rounds: Rounds) -> None:
    """Check that no checkpoint is newer than the beginning of the round after its own."""
    for name, when in evidence.published.items():
        own = int(name.removeprefix("round-").partition(".")[0])
        later = [note for round, notes in rounds.items() if round > own for note in notes[:1] if note.wall < when]
        _refuse_unless(not later, f"{name} was published at {when}, after a later round had begun", later)


def _resumed(evidence: Evidence, rounds: Rounds) -> None:
    """Check that each round begins at step 0, at an earlier checkpoint or snapshot, or at a state in memory."""
    for round, notes in rounds.items():
        steps = _steps(notes)
        if not steps:
            continue
        before = [note for older, ns in rounds.items() if older < round for note in ns]
        known = {0} | {note.step for note in before if note.kind in ("saved", "snapshot")}
        unsaved = _unnoted(rounds, round)
        if evidence.in_memory:  # perhaps the ranks that had done the last step were all lost
            unsaved |= {step - 1 for step in unsaved}
        first = min(steps)
        ends = [note for older, ns in rounds.items() if older < round for note in _last_of_each_rank(ns)]
        _refuse_unless(
            first in known | unsaved, f"round {round} resumed at step {first}, which was not saved", [*ends, *notes]
        )
        published = [note for note in notes if note.kind in ("saved", "result") and note.rank != 0]
        _refuse_unless(not published, f"another rank than 0 published in round {round}", published)


def _last_of_each_rank(notes: Iterable[Note]) -> list[Note]:
    """Return the last note of each rank of a round."""
    return list({note.rank: note for note in notes}.values())


def _unnoted(rounds: Rounds, before: int) -> set[int]:
    """Return the states that workers may have saved without a note because they were killed: after their last steps."""
    return {max(_steps(notes)) + 1 for round, notes in rounds.items() if round < before and _steps(notes)}


def _no_gap(evidence: Evidence, rounds: Rounds) -> None:
    """Check that every step was trained, and none before the steps before it."""
    done = 0
    for round, notes in rounds.items():
        for step in sorted(_steps(notes)):
            _refuse_unless(step <= done, f"round {round} trained step {step} when {done} steps were done", notes)
            done = max(done, step + 1)
    _refuse_unless(done == evidence.steps, f"{done} of {evidence.steps} steps were trained", ())


def _right_end(evidence: Evidence, rounds: Rounds) -> None:
    newest = max(rounds, default=0)
    found = evidence.result.get("digest")
    _refuse_unless(found == evidence.digest, f"the digest is {found}, of an undisturbed run {evidence.digest}", ())
    by = evidence.result.get("round")
    _refuse_unless(by == newest, f"the result is of round {by}, the newest that ran is {newest}", ())


def _spans(faults: Sequence[Fault]) -> Iterable[tuple[Fault, float]]:
    """Return each fault with the time of the next one."""
    return zip(
        faults, [*(fault.monotonic for fault in faults[1:]), float("inf")], strict=False
    )  # there may be no fault


def _cost(fault: Fault, until: float, rounds: Rounds) -> Cost:
    notes = in_order(note for notes in rounds.values() for note in notes if note.progress)
    times = [fault.monotonic, *(note.monotonic for note in notes if fault.monotonic < note.monotonic < until)]
    pause = max((later - earlier for earlier, later in pairwise(times)), default=0.0)
    again = sum(1 for when in _repetitions(notes) if fault.monotonic < when < until)
    return Cost(fault.name, pause, again)


def _repetitions(notes: Iterable[Note]) -> Iterator[float]:
    """Yield the times at which a step of an older round was repeated."""
    done: dict[int, set[int]] = defaultdict(set)
    for note in (note for note in notes if note.kind == "step"):
        if done[note.step] - {note.round} and note.round not in done[note.step]:
            yield note.monotonic
        done[note.step].add(note.round)


def _starts(evidence: Evidence) -> Iterator[float]:
    notes = [note for note in in_order(evidence.notes) if note.progress]
    if not notes or not evidence.faults:
        return
    first = evidence.faults[0].monotonic + notes[0].wall - notes[0].monotonic
    for job in evidence.jobs:
        trained = (note.wall for note in notes if note.wall > job.wall and _host(note.node) == job.node)
        if job.wall > first and (when := next(trained, None)):
            yield when - job.wall


def _host(node: str) -> str:
    """Return ``n3`` for ``n3``, for the element of a pool ``n3_1``, and for the single job ``n3.j7``."""
    return re.split("[_.]", node)[0]


def _refuse_unless(true: bool, what: str, notes: Iterable[Note | None]) -> None:
    if not true:
        raise Refusal("\n".join([what, *(f"  {note}" for note in [n for n in notes if n][-12:])]))
