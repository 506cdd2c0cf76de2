from pathlib import Path

import pytest

from hpcelastic.agent.patience import Patience
from hpcelastic.errors import RendezvousTimeout, StoreError
from hpcelastic.protocol.state import Cause, State
from hpcelastic.rendezvous.rendezvous import Outcome
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
def patience(clock: Clock) -> Patience:
    return Patience(60.0, clock)


def found(state: State, short: bool = False) -> Outcome:
    return Outcome(1, state, "", 0.0, short=short)


def test_the_wait_for_a_round_begins_with_the_agent_and_ends_with_the_round(patience: Patience, clock: Clock) -> None:
    clock.now += 20
    assert patience.left(trains=False) == 40.0
    patience.learned(found(JOINS))
    assert patience.left(trains=False) == 40.0
    assert patience.left(trains=True) is None
    patience.learned(found(RUNS))
    assert patience.left(trains=False) is None


def test_it_is_over_once_and_may_begin_again(patience: Patience, clock: Clock) -> None:
    clock.now += 61
    assert patience.left(trains=False) == 0.0
    assert isinstance(patience.lost(ROOT, "waiting for nodes"), RendezvousTimeout)
    assert str(patience.lost(ROOT, "waiting for nodes")).startswith("waiting for nodes; no round formed in 60 s")
    patience.begin_again()
    assert patience.left(trains=False) == 60.0


@pytest.mark.parametrize("trains", [True, False])
def test_a_directory_that_fails_is_given_as_long(trains: bool, patience: Patience, clock: Clock) -> None:
    clock.now += 30
    assert patience.failed(StoreError("disk full"))
    clock.now += 10
    assert not patience.failed(StoreError("disk still full"))
    assert patience.left(trains) == 50.0
    assert str(patience.lost(ROOT, "")).startswith(f"{ROOT}: could not be used for 60 s")
    assert "disk still full; once that is put right" in str(patience.lost(ROOT, ""))


def test_a_directory_that_hangs_is_doubted(patience: Patience, clock: Clock) -> None:
    patience.doubt()
    clock.now += 10
    assert patience.left(trains=True) == 50.0
    assert "it did not answer" in str(patience.lost(ROOT, ""))
    assert patience.failed(StoreError("stale handle")), "that is news"
    assert patience.left(trains=True) == 50.0


def test_once_it_works_again_the_wait_for_a_round_begins_anew(patience: Patience, clock: Clock) -> None:
    patience.failed(StoreError("disk full"))
    clock.now += 50
    patience.learned(found(JOINS))
    assert not patience.troubled
    assert patience.left(trains=False) == 60.0


def test_how_long_there_have_been_too_few_nodes(patience: Patience, clock: Clock) -> None:
    assert patience.short_for is None
    patience.learned(found(JOINS, short=True))
    clock.now += 5
    patience.learned(found(JOINS, short=True))
    assert patience.short_for == 5.0
    patience.learned(found(JOINS))
    assert patience.short_for is None
