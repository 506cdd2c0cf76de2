"""The duration that a node chooses for its lease, for given lateness of its renewals."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcelastic.protocol.lease_duration import LeaseDuration
from hpcelastic.protocol.settings import RENEWALS, RendezvousSettings
from hpcelastic.protocol.spread import part_of_interval

TRIAL, MEMORY = 30, 500


def after(lateness: list[float], **settings: float) -> LeaseDuration:
    """Return the duration after renewals that were so many seconds late."""
    duration = LeaseDuration(RendezvousSettings(**settings))  # type: ignore[arg-type]  # all are numbers
    for late in lateness:
        duration.record(late)
    return duration


@pytest.mark.parametrize(
    ("lateness", "seconds"),
    [
        pytest.param([], 10.0, id="begins with 10 s"),
        pytest.param([0.01] * (TRIAL - 1), 10.0, id="measures 30 renewals first"),
        pytest.param([0.01] * TRIAL, 2.0, id="takes the shortest on a fast filesystem"),
        pytest.param([0.01] * TRIAL + [0.4], 4.0, id="is eight times the lateness"),
        pytest.param([0.4] + [0.01] * TRIAL, 4.0, id="counts the trial"),
        pytest.param([0.01] * TRIAL + [1.9], 10.0, id="is 10 s for caution at most"),
        pytest.param([0.01] * TRIAL + [6.5], 20.0, id="is longer after a renewal that was nearly too late"),
        pytest.param([5.0], 15.0, id="is longer at once"),
        pytest.param([0.01] * TRIAL + [600.0], 60.0, id="is 60 s at most"),
        pytest.param([6.0] + [0.01] * MEMORY, 18.0, id="remembers 500 renewals"),
        pytest.param([6.0] + [0.01] * 2 * MEMORY, 2.0, id="forgets after 1,000"),
    ],
)
def test_the_duration_follows_the_latest_renewal(lateness: list[float], seconds: float) -> None:
    assert after(lateness).seconds == seconds


def test_a_node_that_others_have_declared_dead_takes_a_longer_lease() -> None:
    duration = after([0.01] * TRIAL)
    found = [duration.seconds]
    for _ in range(4):
        duration.declared_dead()
        found.append(duration.seconds)
    assert found == [2.0, 10.0, 30.0, 60.0, 60.0]


def test_the_only_node_of_a_run_renews_seldom() -> None:
    duration = after([0.01])
    assert duration.set_alone(True)
    for _ in range(TRIAL):
        duration.record(0.01)
        assert (duration.seconds, duration.interval) == (10.0, 10.0 / RENEWALS)
    assert not duration.set_alone(True)
    assert duration.set_alone(False)
    assert (duration.seconds, duration.interval) == (2.0, 2.0 / RENEWALS)


@pytest.mark.parametrize("late", [0.0, 5.0, 1000.0])
def test_a_duration_that_the_user_sets_is_constant(late: float) -> None:
    duration = after([late] * TRIAL, lease=12.0)
    assert (duration.seconds, duration.interval) == (12.0, 12.0 / RENEWALS)


def test_a_node_renews_as_often_as_the_shortest_duration_needs_until_it_has_measured_enough() -> None:
    assert after([0.01]).interval == 2.0 / RENEWALS
    assert after([5.0] * TRIAL).interval == 15.0 / RENEWALS


def test_the_renewals_of_nodes_that_begin_together_are_spread() -> None:
    settings = RendezvousSettings(lease=12.0)
    intervals = [LeaseDuration(settings, part_of_interval(f"node{i:04}@0-ab")).interval for i in range(1000)]
    assert all(0.8 * 12.0 / RENEWALS <= interval <= 12.0 / RENEWALS for interval in intervals)
    times = (number * interval for interval in intervals for number in range(1, 20))
    tenths = Counter(int(10 * time) for time in times)
    assert max(tenths[tenth] for tenth in range(200, 600)) <= 60, "of 28 on average"


@pytest.mark.parametrize(
    ("least", "poll", "seconds"), [(3.0, 0.5, 3.0), (1.0, 0.5, 2.0), (30.0, 0.5, 30.0), (2.0, 4.0, 16.0)]
)
def test_the_user_sets_the_shortest_duration(least: float, poll: float, seconds: float) -> None:
    assert after([0.01] * TRIAL, min_lease=least, poll=poll).seconds == seconds


@given(st.lists(st.floats(0.0, 30.0), max_size=3 * TRIAL))
def test_a_renewal_that_is_as_late_as_before_keeps_the_lease(lateness: list[float]) -> None:
    duration = after(lateness)
    assert duration.interval + duration.lateness <= duration.seconds or duration.seconds == 60.0
