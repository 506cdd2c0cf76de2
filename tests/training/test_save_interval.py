"""The interval between saves, by the formula of Young and Daly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcelastic.training.save_interval import (
    MIN_COST,
    FailureHistory,
    best_interval,
    description,
    differ,
    smoothed,
)

HISTORIES = st.builds(FailureHistory, st.floats(0, 1e8), st.integers(0, 10_000))
COSTS = st.floats(MIN_COST, 1e4)


def lost(interval: float, cost: float, mean_time: float) -> float:
    """Return the part of the time that saves and repeated steps take."""
    return cost / interval + interval / (2 * mean_time)


@given(COSTS, HISTORIES, st.floats(0.01, 100))
def test_no_other_interval_loses_less_time(cost: float, history: FailureHistory, factor: float) -> None:
    best, mean_time = best_interval(cost, history), history.mean_time()
    assert lost(best, cost, mean_time) <= lost(best * factor, cost, mean_time) * (1 + 1e-9)


def test_a_known_case() -> None:
    """Two failures in two days, and the prior of one in a day: one in a day."""
    history = FailureHistory(age=2 * 86400.0, failures=2)
    assert history.mean_time() == 86400.0
    assert best_interval(0.2, history) == pytest.approx(185.9, abs=0.1)


def test_without_failures_there_is_less_and_less_to_lose() -> None:
    intervals = [best_interval(1.0, FailureHistory().after(hours * 3600.0)) for hours in range(0, 100, 10)]
    assert intervals == sorted(intervals) and intervals[0] < intervals[-1]


@given(COSTS, HISTORIES)
def test_each_failure_shortens_the_interval(cost: float, history: FailureHistory) -> None:
    assert best_interval(cost, FailureHistory(history.age, history.failures + 1)) < best_interval(cost, history)


@pytest.mark.parametrize("cost", [None, 0.0, 1e-9, MIN_COST])
def test_a_cost_that_is_tiny_or_unknown_does_not_lead_to_endless_saves(cost: float | None) -> None:
    assert best_interval(cost, FailureHistory()) == best_interval(MIN_COST, FailureHistory()) > 30


def test_the_cost_follows_the_last_measurements() -> None:
    assert smoothed(None, 3.0) == 3.0
    assert smoothed(3.0, 1.0) == 2.0


def test_only_a_change_by_more_than_half_counts() -> None:
    assert [differ(100.0, other) for other in (60.0, 70.0, 100.0, 150.0, 151.0)] == [True, False, False, False, True]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            (95.0, 3.045, 123.4, FailureHistory(3.1 * 3600, 0)),
            "saving a checkpoint about every 31 steps (95 s): a save stops training for 123 s, and 0 failures in 3.1 h",
        ),
        (
            (95.0, 120.0, 0.004, FailureHistory(0.0, 1)),
            "saving a checkpoint about every step (95 s): a save stops training for 0.004 s, and 1 failure in 0.0 h",
        ),
    ],
)
def test_people_read_why(arguments: tuple[float, float, float, FailureHistory], text: str) -> None:
    assert description(*arguments) == text
