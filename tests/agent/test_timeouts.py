from pathlib import Path

import pytest

from hpcelastic.agent.timeouts import Timeouts
from hpcelastic.errors import RendezvousTimeout, StoreError
from hpcelastic.protocol.lease_duration import HeldLease
from hpcelastic.protocol.state import Cause, State
from hpcelastic.rendezvous.observation import Observation
from tests.protocol.builders import joining, running

ROOT = Path("/scratch/run")
RUNS = running("ab")
JOINS = joining("ab", Cause.NODE)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timeouts(clock: Clock) -> Timeouts:
    return Timeouts(60.0, clock)


def found(state: State, short: bool = False) -> Observation:
    return Observation(1, state, "", HeldLease(0.0, 1.0), short=short)


def test_the_wait_for_a_round_begins_with_the_agent_and_ends_with_the_round(timeouts: Timeouts, clock: Clock) -> None:
    clock.now += 20
    assert timeouts.remaining(training=False) == 40.0
    timeouts.observe(found(JOINS))
    assert timeouts.remaining(training=False) == 40.0
    assert timeouts.remaining(training=True) is None
    timeouts.observe(found(RUNS))
    assert timeouts.remaining(training=False) is None


def test_the_wait_ends_once_and_may_begin_again(timeouts: Timeouts, clock: Clock) -> None:
    clock.now += 61
    assert timeouts.remaining(training=False) == 0.0
    assert isinstance(timeouts.timeout_error(ROOT, "waiting for nodes"), RendezvousTimeout)
    assert str(timeouts.timeout_error(ROOT, "waiting for nodes")).startswith(
        "waiting for nodes; no round formed in 60 s"
    )
    timeouts.restart()
    assert timeouts.remaining(training=False) == 60.0


@pytest.mark.parametrize("training", [True, False])
def test_the_wait_for_a_failed_directory_is_as_long(training: bool, timeouts: Timeouts, clock: Clock) -> None:
    clock.now += 30
    assert timeouts.record_error(StoreError("disk full"))
    clock.now += 10
    assert not timeouts.record_error(StoreError("disk still full"))
    assert timeouts.remaining(training) == 50.0
    assert str(timeouts.timeout_error(ROOT, "")).startswith(f"{ROOT}: could not be used for 60 s")
    assert "disk still full; once that is fixed" in str(timeouts.timeout_error(ROOT, ""))


def test_a_directory_that_does_not_answer_counts_as_failed(timeouts: Timeouts, clock: Clock) -> None:
    timeouts.mark_unresponsive()
    clock.now += 10
    assert timeouts.remaining(training=True) == 50.0
    assert "it did not answer" in str(timeouts.timeout_error(ROOT, ""))
    assert timeouts.record_error(StoreError("stale handle")), "that is news"
    assert timeouts.remaining(training=True) == 50.0


def test_the_wait_for_a_round_begins_anew_after_the_failure(timeouts: Timeouts, clock: Clock) -> None:
    timeouts.record_error(StoreError("disk full"))
    clock.now += 50
    timeouts.observe(found(JOINS))
    assert not timeouts.failing
    assert timeouts.remaining(training=False) == 60.0


def test_the_duration_of_a_shortage_of_nodes(timeouts: Timeouts, clock: Clock) -> None:
    assert timeouts.shortage_duration is None
    timeouts.observe(found(JOINS, short=True))
    clock.now += 5
    timeouts.observe(found(JOINS, short=True))
    assert timeouts.shortage_duration == 5.0
    timeouts.observe(found(JOINS))
    assert timeouts.shortage_duration is None
