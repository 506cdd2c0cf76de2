"""The rule that decides which checkpoints stay, compared with what it promises."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcelastic.training.retention import CheckpointName, Retention

METRICS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
VALUES = st.floats(allow_nan=False, allow_infinity=False)


def named(round: int, step: int, value: float | None) -> CheckpointName:
    metrics = None if value is None else {"loss": value}
    return CheckpointName(round, step, Retention(best="loss").metric_of(metrics))


SMALL = st.none() | st.sampled_from([-1.0, -0.5, 0.0, 0.25, 3.0])
NAMES = st.sets(st.builds(named, st.integers(1, 4), st.integers(0, 12), SMALL), min_size=1, max_size=12)
RULES = st.builds(
    Retention, st.integers(1, 4), st.integers(0, 4), st.sampled_from(["", "loss"]), st.sampled_from(["min", "max"])
)


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 10**9)), min_size=1))
def test_the_newest_is_of_the_latest_round_then_of_the_latest_step(keys: list[tuple[int, int]]) -> None:
    names = [CheckpointName.parse(str(CheckpointName(*key))) for key in keys]
    assert max(name[:2] for name in names if name) == max(keys)


@given(METRICS, VALUES)
def test_a_name_has_the_exact_value_of_any_metric(metric: str, value: float) -> None:
    name = CheckpointName(3, 120, Retention(best=metric).metric_of({metric: value}))
    assert "/" not in str(name) and "\0" not in str(name)
    assert CheckpointName.parse(str(name)) == name
    assert CheckpointName.parse(f"{name}.0a1b2c3d.draft", draft=True) == name
    assert name.value(metric) == value
    assert name.value(metric + "x") is None


@pytest.mark.parametrize(
    "text",
    [
        "round-0001.step-00000001.pt.0a1b2c3d.draft",
        "round-0001.step-00000001.loss=nan.pt",
        "round-0001.step-00000001.loss.pt",
        "round-0001.step-00000001.pt.bak",
        "notes.pt",
    ],
)
def test_other_names_are_no_checkpoints(text: str) -> None:
    assert CheckpointName.parse(text) is None


@given(RULES, NAMES, st.data())
def test_what_stays_is_what_the_rule_promises(rule: Retention, names: set[CheckpointName], data: st.DataObject) -> None:
    saved = data.draw(st.sampled_from(sorted(names)))
    broken = data.draw(st.sets(st.sampled_from(sorted(names))))
    staying = rule.staying(names, saved, lambda name: name not in broken)
    others = {name for name in names if name == saved or name[:2] != saved[:2]}
    newer = {name: sum(other > name for other in others) for name in others}
    whole = [value for name in others - broken if (value := name.value(rule.best)) is not None]
    best = (min if rule.mode == "min" else max)(whole, default=math.nan)
    for name in others:
        promised = (
            name == saved
            or newer[name] < rule.keep
            or (rule.keep_every > 0 and name.step % rule.keep_every == 0)
            or (
                name not in broken
                and name.value(rule.best) == best
                and all(other < name for other in others - broken - {name} if other.value(rule.best) == best)
            )
        )
        assert (name in staying) == promised, name
    assert staying <= others


@pytest.mark.parametrize(("mode", "best"), [("min", -1.0), ("max", 3.0)])
def test_the_best_is_the_least_or_the_greatest(mode: str, best: float) -> None:
    rule = Retention(1, 0, "loss", mode)
    names = [named(1, step, value) for step, value in enumerate([0.0, -1.0, 3.0, 0.25])]
    assert rule.ranked(names)[0].value("loss") == best
    assert {name.value("loss") for name in rule.staying(names, names[-1], lambda name: True)} == {best, 0.25}


@given(RULES, st.lists(SMALL, min_size=1, max_size=15))
def test_the_best_of_all_that_were_ever_saved_stays(rule: Retention, values: list[float | None]) -> None:
    stored: set[CheckpointName] = set()
    saved = [named(1, step, value) for step, value in enumerate(values)]
    for name in saved:
        stored = rule.staying(stored | {name}, name, lambda name: True)
    assert rule.ranked(stored)[:1] == rule.ranked(saved)[:1]
    assert {*saved[-rule.keep :]} <= stored
    assert stored == rule.staying(stored, saved[-1], lambda name: True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": 0}, "keep is 0; at least 1 checkpoint must stay"),
        ({"keep_every": -5}, "keep_every is -5; it must be 0 or more steps"),
        ({"mode": "least"}, "mode is 'least'; it must be 'min' or 'max'"),
    ],
)
def test_wrong_rules_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as error:
        Retention(**arguments)  # type: ignore[arg-type]  # some have another type
    assert str(error.value) == message


def test_poisoned_checkpoints_stay_and_leave_the_others_their_places() -> None:
    names = {named(round, step, value) for round, step, value in [(1, 10, 1), (1, 20, 1), (1, 30, 0), (1, 40, 1)]}
    rule, saved = Retention(keep=2, best="loss"), named(2, 25, 2)
    assert {name.step for name in rule.staying(names, saved, lambda name: True)} == {25, 40, 30}
    sparing = rule.sparing(1, 20)
    assert {name.step for name in sparing.staying(names, saved, lambda name: True)} == {25, 20, 30, 40}
    later = {*names, saved, named(2, 35, 2)}
    assert {name.step for name in sparing.staying(later, named(2, 45, 3), lambda name: True)} == {45, 35, 20, 30, 40}
