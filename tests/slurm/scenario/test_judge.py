"""The judge accepts a correct run, and refuses each error that is inserted into its evidence."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slurm.scenario.judge import Begin, Cost, Evidence, Fault, Refusal, judge
from tests.slurm.scenario.plan import Plan, advance, digest, first_state, share, undisturbed
from tests.slurm.scenario.trace import Note, Trace, read_trace

pytestmark = pytest.mark.nightly

EPOCH = 1_000_000.0
"""The difference between the two clocks in seconds."""


def note(kind: str, round: int, rank: int, step: int, when: float, world_size: int = 2) -> Note:
    return Note(kind, round, rank, world_size, step, f"n{rank + 1}", 10 * round + rank, when, when + EPOCH)


def trained(round: int, steps: range, begin: float, world_size: int = 2) -> list[Note]:
    """A round that does a step each second, and saves after every second step."""
    ranks = range(world_size)
    notes = [note("started", round, rank, -1, begin + rank / 100, world_size) for rank in ranks]
    for when, step in enumerate(steps, 1):
        notes += [note("step", round, rank, step, begin + when + rank / 100, world_size) for rank in ranks]
        if step % 2:
            notes.append(note("saved", round, 0, step + 1, begin + when + 0.5, world_size))
    return notes


def good() -> Evidence:
    """Steps 0 to 4, a fault at 6.5, and the steps from the checkpoint of step 4 to the end on one more node."""
    return Evidence(
        notes=[*trained(1, range(5), 0), *trained(2, range(4, 8), 10, 3), note("result", 2, 0, 8, 15, 3)],
        result={"digest": "d", "round": 2},
        members={1: ("n1", "n2"), 2: ("n1", "n2", "n3")},
        steps=8,
        digest="d",
        starts={1: EPOCH - 0.1, 2: EPOCH + 9.9},
        published={"round-0001.step-00000004.pt": EPOCH + 4.5, "round-0002.step-00000008.pt": EPOCH + 14.5},
        faults=(Fault("crash", 5.5), Fault("harmless", 13.5)),
    )


def test_a_correct_run() -> None:
    verdict = judge(good())
    assert (verdict.rounds, verdict.steps_lost) == (2, 1)
    assert verdict.costs == (Cost("crash", 5.5, 1), Cost("harmless", pytest.approx(0.5), 0))  # type: ignore[arg-type]  # within rounding


def test_a_run_without_faults() -> None:
    assert judge(dataclasses.replace(good(), faults=())).costs == ()


def test_the_time_until_restarted_jobs_train() -> None:
    begun = [("n1", 0.2), ("n3", 6.0), ("n1", 9.0), ("n4", 9.0)]
    jobs = [Begin(node, EPOCH + when) for node, when in begun]
    assert judge(dataclasses.replace(good(), jobs=jobs)).starts == pytest.approx((5.02, 2.0))


def also(*notes: Note) -> Callable[[Evidence], Evidence]:
    return lambda it: dataclasses.replace(it, notes=[*it.notes, *notes])


def without(wrong: Callable[[Note], bool]) -> Callable[[Evidence], Evidence]:
    return lambda it: dataclasses.replace(it, notes=[note for note in it.notes if not wrong(note)])


def changed_notes(change: Callable[[Note], Note]) -> Callable[[Evidence], Evidence]:
    return lambda it: dataclasses.replace(it, notes=[change(note) for note in it.notes])


def but(**facts: object) -> Callable[[Evidence], Evidence]:
    return lambda it: dataclasses.replace(it, **facts)  # type: ignore[arg-type]  # as the table has them


def shifted(round: int, seconds: float) -> Callable[[Evidence], Evidence]:
    def change(it: Note) -> Note:
        by = seconds if it.round == round else 0
        return dataclasses.replace(it, monotonic=it.monotonic + by, wall=it.wall + by)

    return changed_notes(change)


def resumed_at(step: int) -> Callable[[Evidence], Evidence]:
    """Evidence in which the second round begins at ``step``."""
    notes = [*trained(1, range(5), 0), *trained(2, range(step, 8), 10, 3), note("result", 2, 0, 8, 19, 3)]
    return but(notes=notes)


WRONGS = {
    "two groups at the same time": (shifted(2, -5.5), "round 2 began while an older one ran"),
    "an orphan continues": (also(note("step", 1, 1, 5, 12.0)), "round 2 began while an older one ran"),
    "an orphan starts late": (also(note("started", 1, 1, -1, 12.0)), "round 2 began while an older one ran"),
    "an orphan publishes": (also(note("saved", 1, 0, 6, 12.0)), "round 2 began while an older one ran"),
    "an orphan publishes without a note": (
        but(published={"round-0001.step-00000006.pt": EPOCH + 12.0}),
        "round-0001.step-00000006.pt was published at",
    ),
    "workers started too soon": (but(starts={2: EPOCH + 5.0}), "an agent started workers of round 2"),
    "a rank twice": (also(dataclasses.replace(note("step", 1, 1, 4, 5.2), pid=99)), "rank 1 of round 1 ran twice"),
    "a rank on two nodes": (also(dataclasses.replace(note("step", 1, 1, 4, 5.2), node="n3")), "rank 1 of round 1 ran"),
    "two sizes of the world": (also(note("step", 1, 1, 4, 5.2, 3)), "round 1 has two world sizes"),
    "a node that is no member": (but(members={1: ("n1", "n9"), 2: ("n1", "n2", "n3")}), "round 1 is of"),
    "ranks exchanged": (but(members={1: ("n2", "n1"), 2: ("n1", "n2", "n3")}), "round 1 is of"),
    "an unknown round": (but(members={1: ("n1", "n2")}), "round 2 is of"),
    "a rank that is missing in a step": (
        without(lambda it: (it.kind, it.round, it.rank, it.step) == ("step", 2, 2, 4)),
        r"step 4 of round 2 was done by ranks \[0, 1\] alone",
    ),
    "a step left out by a rank": (
        without(lambda it: (it.kind, it.round, it.rank, it.step) == ("step", 2, 2, 5)),
        "rank 2 of round 2 trained out of turn",
    ),
    "a step that was not saved": (resumed_at(3), "round 2 resumed at step 3"),
    "a gap": (resumed_at(6), "round 2 resumed at step 6"),
    "a step is trained before the steps before it": (
        but(notes=[*trained(1, range(2), 0), note("saved", 1, 0, 4, 3.5), *trained(2, range(4, 8), 10, 3)]),
        "round 2 trained step 4 when 2 steps were done",
    ),
    "an end too soon": (but(steps=9), "8 of 9 steps were trained"),
    "a rank other than 0 publishes": (
        also(note("saved", 2, 1, 8, 14.6, 3)),
        "another rank than 0 published in round 2",
    ),
    "another result": (but(result={"digest": "e", "round": 2}), "the digest is e, of an undisturbed run d"),
    "no result": (but(result={}), "the digest is None"),
    "an old result": (but(result={"digest": "d", "round": 1}), "the result is of round 1"),
}


@pytest.mark.parametrize(("wrong", "words"), WRONGS.values(), ids=WRONGS)
def test_the_judge_refuses(wrong: Callable[[Evidence], Evidence], words: str) -> None:
    with pytest.raises(Refusal, match=words):
        judge(wrong(good()))


def test_a_checkpoint_whose_worker_was_killed_before_its_note() -> None:
    assert judge(without(lambda it: (it.kind, it.round) == ("saved", 1))(resumed_at(5)(good()))).steps_lost == 0


def test_a_round_that_continues_from_a_snapshot() -> None:
    assert judge(also(note("snapshot", 1, 0, 3, 3.5))(resumed_at(3)(good()))).steps_lost == 2


def test_a_missing_or_repeated_step_changes_the_digest() -> None:
    ends = {undisturbed(Plan(steps=steps)) for steps in (5, 10, 15)}
    assert len(ends | {undisturbed(Plan(steps=10, seed=1))}) == 4
    assert undisturbed(Plan(steps=10, save_every=10, step_time=1)) == undisturbed(Plan(steps=10))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 20])
def test_the_digest_does_not_depend_on_the_number_of_ranks(ranks: int) -> None:
    plan = Plan(steps=10)
    state = first_state()
    for step in range(plan.steps):
        batch = plan.batches.indices(step)
        shares = [share(state, step, batch[rank::ranks]) for rank in range(ranks)]
        state = advance(state, [sum(values) for values in zip(*shares, strict=True)])
    assert digest(state) == undisturbed(plan)


def test_a_trace_is_read_in_the_order_of_time_without_incomplete_lines(tmp_path: Path) -> None:
    first, second = Trace(tmp_path / "t", (1, 0, 2), "n1"), Trace(tmp_path / "t", (1, 1, 2), "n2")
    for step, trace in enumerate([second, first, second]):
        trace.note("step", step)
    Trace(tmp_path / "t", (2, 0, 2), "n1").note("started")
    assert [note.round for note in read_trace(tmp_path / "t", newest=True)] == [2]
    (tmp_path / "t" / "cut.jsonl").write_text('{"kind": "st')
    assert [(note.step, note.rank, note.node) for note in read_trace(tmp_path / "t")] == [
        (0, 1, "n2"), (1, 0, "n1"), (2, 1, "n2"), (-1, 0, "n1")
    ]  # fmt: skip
