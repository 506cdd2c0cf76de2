"""The return of a training to an older state, because the newest one is poisoned."""

from dataclasses import replace

import pytest

from hpcelastic.protocol.budget import has_crash_loop, identity, reason_to_give_up
from hpcelastic.protocol.findings import Rollback, RollbackDemand
from hpcelastic.protocol.rollback import ATTEMPTS, reason_to_end, rolled_back
from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import Failure, NodeState, Participant, Phase, State
from tests.protocol.builders import member

STATE = State(
    "r",
    Settings(NodeRange(2, 3)),
    Phase.JOINING,
    4,
    tuple(Participant(f"{name}@1", 1, "10.0.0.1", 1) for name in "abc"),
)
FAILURE = Failure(4, "b@1", 1, 0, 1, "the loss is nan", rollback=RollbackDemand(150, 100), step=151)


THERE = [member(name, NodeState.READY, 4) for name in "abc"]


def after(state: State, *failures: Failure, nodes: int = 3) -> State:
    """Return the state after these failures, one in each round, with so many nodes."""
    for failure in failures:
        state = replace(rolled_back(state, replace(failure, round=state.round), THERE[:nodes]), failures=(failure,))
        state = replace(state, round=state.round + 1)
    return state


def test_a_demand_excludes_newer_states_of_that_round_and_earlier_ones() -> None:
    state = after(STATE, FAILURE)
    assert state.rollback == Rollback(4, 100, 150, 1) and not state.drained
    rollback = state.rollback
    assert rollback.excludes(4, 150) and rollback.excludes(4, 101) and rollback.excludes(3, 101)
    assert not rollback.excludes(4, 100) and not rollback.excludes(3, 50)
    assert not rollback.excludes(5, 150)


@pytest.mark.parametrize("failure", [None, replace(FAILURE, rollback=None)])
def test_another_failure_changes_nothing(failure: Failure | None) -> None:
    state = after(STATE, FAILURE)
    assert rolled_back(state, failure, THERE) == state


def test_the_same_step_again_goes_further_and_another_step_begins_anew() -> None:
    older = replace(FAILURE, rollback=RollbackDemand(150, 50))
    state = after(STATE, FAILURE, older)
    assert state.rollback == Rollback(5, 50, 150, 2) and not state.drained
    state = after(state, replace(FAILURE, rollback=RollbackDemand(160, 140)))
    assert state.rollback == Rollback(6, 140, 160, 1)


def test_the_node_is_drained_at_last() -> None:
    assert after(STATE, *[FAILURE] * ATTEMPTS).drained == ("b",)


@pytest.mark.parametrize(("places", "drained"), [("sstt", ("b",)), ("sst", ())])
def test_a_node_whose_group_the_run_needs_is_not_drained(places: str, drained: tuple[str, ...]) -> None:
    state = replace(STATE, settings=Settings(NodeRange(2, 4, multiple=2, within="switch")))
    there = [member("abcd"[i], NodeState.READY, 4, topology=place) for i, place in enumerate(places)]
    for _ in range(ATTEMPTS):
        state = replace(rolled_back(state, replace(FAILURE, round=state.round), there), round=state.round + 1)
    assert state.drained == drained


def test_a_node_that_the_run_needs_is_not_drained() -> None:
    assert not after(STATE, *[FAILURE] * ATTEMPTS, nodes=2).drained


def test_the_run_ends_when_nothing_has_helped() -> None:
    state = after(STATE, *[FAILURE] * ATTEMPTS)
    assert reason_to_end(state) is None
    state = after(state, FAILURE)
    reason = (
        "rank 1 failed on b: the loss is nan; the state is poisoned after 150 steps, also after 3 returns to an older "
        "one: a restart cannot help"
    )
    assert reason_to_end(state) == reason_to_give_up(state) == reason
    assert has_crash_loop(replace(state, phase=Phase.FAILED))
    assert not has_crash_loop(state)


def test_another_failure_after_that_is_not_the_same() -> None:
    state = after(STATE, *[FAILURE] * (ATTEMPTS + 1))
    assert reason_to_end(replace(state, failures=(replace(FAILURE, rollback=None),))) is None


def test_a_demand_is_no_crash_loop() -> None:
    traced = replace(FAILURE, traceback='  File "/home/me/train.py", line 9, in <module>\n')
    assert identity(replace(traced, rollback=None)) and not identity(traced)
