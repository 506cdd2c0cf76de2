"""What an agent decides, without an agent: events in, actions out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hpcelastic.protocol.assignment import assignment
from hpcelastic.protocol.node import (
    Action,
    Actions,
    Finish,
    NodeStateMachine,
    Publish,
    RequestStop,
    ReservePort,
    StartWorkers,
    StopWorkers,
)
from hpcelastic.protocol.state import Cause, NodeState, Notice, Phase, State
from tests.protocol.builders import created, failure, joining, member, running, settings

LEASE = 10.0
PORT = 4711
NOW = 100.0
FRESH, OLD = NOW - 1.0, NOW - LEASE


def state_machine(
    node_state: NodeState = NodeState.READY, round: int = 0, runs: State | None = None
) -> NodeStateMachine:
    """Node ``a``; with ``runs`` its workers of that state's round are running."""
    found = NodeStateMachine(member("a", node_state, round), LEASE, lambda: NOW)
    found.part = assignment(runs, "a@0") if runs else None
    return found


def carried_out(actions: Actions, heeds: bool = False) -> list[Action]:
    done: list[Action] = []
    answer: int | None = None
    while True:
        try:
            done.append(actions.send(answer))
        except StopIteration:
            return done
        answer = PORT if isinstance(done[-1], ReservePort) else int(heeds)


def brief(actions: Actions, heeds: bool = False) -> list[str]:
    """The actions in words: ``say ready 1``, ``start 1``, ``stop``, ``reserve``, ``end failed``."""
    words: dict[type, Callable[[Any], str]] = {
        Publish: lambda a: f"say {a.member.node_state.value} {a.member.round}",
        StartWorkers: lambda a: f"start {a.part.round}",
        StopWorkers: lambda _: "stop",
        RequestStop: lambda _: "ask",
        ReservePort: lambda _: "reserve",
        Finish: lambda a: f"end {a.state.phase.value}",
    }
    return [words[type(action)](action) for action in carried_out(actions, heeds)]


ENDED = joining("ab", Cause.NODE, round=1)
RUNS_1, RUNS_2 = running("ab", round=1), running("ab", round=2)
WITHOUT_US = running("bc", round=2)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param(WITHOUT_US, [], id="others train meanwhile"),
        pytest.param(ENDED, ["reserve", "say ready 1"], id="nobody trains"),
        pytest.param(RUNS_1, ["start 1", "say running 1"], id="it is awaited"),
    ],
)
def test_a_newcomer_asks_for_a_place_once_it_is_prepared(state: State, expected: list[str]) -> None:
    newcomer = state_machine(round=-1)
    newcomer.prepared = False
    assert brief(newcomer.observe(state, FRESH)) == expected
    newcomer.prepared = True
    if not expected:
        assert brief(newcomer.observe(state, FRESH)) == ["reserve", "say ready 2"]


def test_the_first_word_asks_for_a_place_where_a_round_forms() -> None:
    assert brief(state_machine(round=-1).begin(ENDED)) == ["reserve", "say ready 1"]
    assert brief(state_machine(round=-1).begin(RUNS_1)) == []


def test_who_asked_for_a_place_and_got_none_asks_again_once_it_is_prepared() -> None:
    late = state_machine(round=-1)
    late.prepared = False
    assert brief(late.begin(ENDED)) == ["reserve", "say ready 1"]
    assert brief(late.observe(WITHOUT_US, FRESH)) == []


def test_who_has_been_in_a_round_is_prepared() -> None:
    known = state_machine(round=0)
    known.prepared = False
    assert brief(known.observe(RUNS_1, FRESH)) == ["start 1", "say running 1"]
    assert brief(known.observe(WITHOUT_US, FRESH))[1:] == ["reserve", "say ready 2"]


@pytest.mark.parametrize(
    ("before", "state", "lease_from", "expected"),
    [
        pytest.param(state_machine(round=-1), created(), FRESH, ["reserve", "say ready 0"], id="asks for a place"),
        pytest.param(state_machine(round=0), created(), FRESH, [], id="has asked"),
        pytest.param(state_machine(), RUNS_1, FRESH, ["start 1", "say running 1"], id="is in the round"),
        pytest.param(state_machine(), RUNS_1, OLD, [], id="starts nothing on old news"),
        pytest.param(state_machine(NodeState.FAILED, 1), RUNS_1, FRESH, [], id="starts a round once, which failed"),
        pytest.param(
            state_machine(NodeState.SUCCEEDED, 1), RUNS_1, FRESH, [], id="starts a round once, which succeeded"
        ),
        pytest.param(state_machine(NodeState.READY, 1), RUNS_1, FRESH, [], id="starts a round once, which was fenced"),
        pytest.param(state_machine(NodeState.RUNNING, 1, RUNS_1), RUNS_1, FRESH, [], id="goes on"),
        pytest.param(
            state_machine(NodeState.RUNNING, 1, RUNS_1),
            ENDED,
            FRESH,
            ["stop", "reserve", "say ready 1"],
            id="is ready only when its workers have stopped",
        ),
        pytest.param(
            state_machine(NodeState.RUNNING, 1, RUNS_1),
            RUNS_2,
            FRESH,
            ["stop", "start 2", "say running 2"],
            id="has slept through the end of its round",
        ),
        pytest.param(
            state_machine(NodeState.RUNNING, 1, RUNS_1),
            RUNS_2,
            OLD,
            ["stop"],
            id="has slept, and the lease has run out",
        ),
        pytest.param(
            state_machine(NodeState.RUNNING, 1, RUNS_1),
            WITHOUT_US,
            FRESH,
            ["stop", "reserve", "say ready 2"],
            id="the others have gone on",
        ),
        pytest.param(
            state_machine(NodeState.SUCCEEDED, 1), ENDED, FRESH, ["reserve", "say ready 1"], id="had succeeded in vain"
        ),
        pytest.param(
            state_machine(NodeState.RUNNING, 1, RUNS_1),
            replace(RUNS_1, phase=Phase.CLOSED),
            FRESH,
            ["stop", "end closed"],
            id="the run was closed",
        ),
        pytest.param(
            state_machine(NodeState.SUCCEEDED, 1),
            replace(RUNS_1, phase=Phase.SUCCEEDED),
            OLD,
            ["end succeeded"],
            id="the run has succeeded",
        ),
    ],
)
def test_what_follows_from_the_register(
    before: NodeStateMachine, state: State, lease_from: float, expected: list[str]
) -> None:
    fresh = NodeStateMachine(before.member, LEASE, lambda: NOW)
    fresh.part = before.part
    assert brief(fresh.observe(state, lease_from)) == expected


def test_a_lease_regained_is_not_trusted_at_once() -> None:
    agent = state_machine()
    assert brief(agent.observe(RUNS_1, FRESH, settled=False)) == []
    assert brief(agent.observe(RUNS_1, FRESH, settled=True)) == ["start 1", "say running 1"]


def test_a_failure_is_told_before_the_others_are_stopped() -> None:
    agent = state_machine(NodeState.RUNNING, 1, RUNS_1)
    said, stopped = carried_out(agent.worker_failed(failure("a", 1)))
    assert isinstance(said, Publish) and said.member.failure == failure("a", 1)
    assert stopped == StopWorkers("rank 0 failed")
    assert agent.part is None


def test_the_next_round_forgets_the_failure() -> None:
    agent = state_machine(NodeState.RUNNING, 1, RUNS_1)
    carried_out(agent.worker_failed(failure("a", 1)))
    carried_out(agent.observe(ENDED, FRESH))
    carried_out(agent.observe(RUNS_2, FRESH))
    assert (agent.member.node_state, agent.member.failure, agent.member.port) == (NodeState.RUNNING, None, PORT)


def test_a_success_is_told_once_all_workers_have_ended() -> None:
    assert brief(state_machine(NodeState.RUNNING, 1, RUNS_1).workers_succeeded()) == ["say succeeded 1"]


@pytest.mark.parametrize("state", [ENDED, WITHOUT_US, RUNS_2], ids=["it ended", "others have gone on", "it is named"])
def test_an_agent_whose_success_is_final_follows_no_other_round(state: State) -> None:
    agent = state_machine(NodeState.RUNNING, 1, RUNS_1)
    carried_out(agent.workers_succeeded(final=True))
    assert agent.member.final
    assert brief(agent.observe(state, FRESH)) == []


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        pytest.param(state_machine(NodeState.RUNNING, 1, RUNS_1), ["stop", "reserve", "say ready 1"], id="workers ran"),
        pytest.param(state_machine(NodeState.FAILED, 1), ["say failed 1"], id="they had just failed"),
    ],
)
def test_a_fence_is_told_with_the_round_that_it_fell_in(agent: NodeStateMachine, expected: list[str]) -> None:
    assert brief(agent.lease_expired()) == expected
    assert agent.member.fenced == 1


def test_a_store_that_was_lost_ends_the_round_as_a_fence_does() -> None:
    agent = state_machine(NodeState.RUNNING, 1, RUNS_1)
    actions = carried_out(agent.lease_expired("the store was lost"))
    assert actions[0] == StopWorkers("the store was lost")
    assert (agent.member.node_state, agent.member.fenced, agent.member.port) == (NodeState.READY, 1, PORT)


def test_a_store_that_is_lost_after_our_workers_success_leaves_it_standing() -> None:
    agent = state_machine(NodeState.SUCCEEDED, 1)
    assert brief(agent.lease_expired("the store was lost")) == ["say succeeded 1"]
    assert agent.member.fenced == 1


def test_a_failure_that_the_directory_does_not_take_in_is_not_held_against_the_worker() -> None:
    agent = state_machine(NodeState.RUNNING, 1, RUNS_1)
    carried_out(agent.worker_failed(failure("a", 1)))
    assert brief(agent.store_failed()) == ["say failed 1"]
    assert (agent.member.fenced, agent.member.failure) == (1, failure("a", 1))
    assert brief(agent.store_failed()) == []


def test_a_failure_while_the_directory_fails_is_not_held_against_the_worker() -> None:
    agent = state_machine(NodeState.RUNNING, 1, RUNS_1)
    assert brief(agent.store_failed()) == []
    assert brief(agent.worker_failed(failure("a", 1))) == ["say failed 1", "stop"]
    assert agent.member.fenced == 1


def test_a_failure_once_the_directory_works_again_is_one() -> None:
    agent = state_machine(NodeState.RUNNING, 1, RUNS_1)
    carried_out(agent.store_failed())
    carried_out(agent.observe(RUNS_1, FRESH))
    carried_out(agent.worker_failed(failure("a", 1)))
    assert agent.member.fenced == -1


WARNING = Notice("preempted", 20.0)
ENDS_WELL = joining("ab", Cause.JOIN, round=1, grace=120.0)


def test_a_node_that_leaves_starts_nothing_more() -> None:
    agent = state_machine(NodeState.RUNNING, 1, RUNS_1)
    assert brief(agent.leave(WARNING)) == ["say running 1", "ask", "stop"]
    assert agent.member.leaving == WARNING
    assert brief(agent.observe(RUNS_2, FRESH)) == []
    assert brief(agent.depart()) == ["say left 1"]


def test_a_node_without_workers_leaves_at_once() -> None:
    agent = state_machine()
    assert brief(agent.leave(WARNING)) == []
    assert agent.leaving and agent.part is None


def test_workers_that_heed_it_come_to_a_steps_end_before_the_node_leaves() -> None:
    agent = state_machine(NodeState.RUNNING, 1, RUNS_1)
    assert brief(agent.leave(WARNING), heeds=True) == ["say running 1", "ask"]
    assert agent.seconds_to_stop == 20.0
    assert brief(agent.observe(joining("ab", Cause.LEAVE, round=1, grace=20.0), FRESH), heeds=True) == []
    assert brief(agent.workers_succeeded(early=True)) == []
    assert (agent.part, agent.seconds_to_stop) == (None, None)


@pytest.mark.parametrize(
    ("state", "heeds", "expected"),
    [
        pytest.param(ENDS_WELL, True, ["ask"], id="nothing is wrong"),
        pytest.param(ENDS_WELL, False, ["ask", "stop", "reserve", "say ready 1"], id="they do not heed it"),
        pytest.param(replace(ENDS_WELL, grace=0.0), True, ["stop", "reserve", "say ready 1"], id="something is wrong"),
        pytest.param(RUNS_2, True, ["stop", "start 2", "say running 2"], id="the others went on"),
    ],
)
def test_workers_are_asked_to_stop_where_nothing_is_wrong(state: State, heeds: bool, expected: list[str]) -> None:
    assert brief(state_machine(NodeState.RUNNING, 1, RUNS_1).observe(state, FRESH), heeds=heeds) == expected


def test_workers_that_have_come_to_a_steps_end_are_no_success() -> None:
    agent = state_machine(NodeState.RUNNING, 1, RUNS_1)
    brief(agent.observe(ENDS_WELL, FRESH), heeds=True)
    assert brief(agent.workers_succeeded(early=True)) == ["reserve", "say ready 1"]


def test_a_success_in_a_round_that_is_to_end_waits_for_the_others() -> None:
    agent = state_machine(NodeState.RUNNING, 1, RUNS_1)
    brief(agent.observe(ENDS_WELL, FRESH), heeds=True)
    assert brief(agent.workers_succeeded()) == ["say succeeded 1"]
    assert brief(agent.observe(ENDS_WELL, FRESH)) == []
    assert brief(agent.observe(replace(ENDS_WELL, grace=0.0), FRESH)) == ["reserve", "say ready 1"]


def test_what_goes_wrong_while_they_are_asked_stops_them() -> None:
    agent = state_machine(NodeState.RUNNING, 1, RUNS_1)
    brief(agent.observe(ENDS_WELL, FRESH), heeds=True)
    assert brief(agent.observe(replace(ENDS_WELL, grace=0.0), FRESH)) == ["stop", "reserve", "say ready 1"]


def test_patience_with_a_step_ends() -> None:
    agent = state_machine(NodeState.RUNNING, 1, RUNS_1)
    brief(agent.observe(ENDS_WELL, FRESH), heeds=True)
    assert brief(agent.stop_timed_out()) == ["stop", "reserve", "say ready 1"]


def test_of_two_deadlines_the_sooner_counts() -> None:
    agent = state_machine(NodeState.RUNNING, 1, RUNS_1)
    brief(agent.leave(Notice("time limit", 90.0)), heeds=True)
    assert brief(agent.observe(joining("ab", Cause.LEAVE, round=1, grace=20.0), FRESH), heeds=True) == ["ask"]
    assert agent.seconds_to_stop == 20.0


def test_a_drained_node_leaves() -> None:
    agent = state_machine(NodeState.RUNNING, 1, RUNS_1)
    assert brief(agent.observe(replace(RUNS_1, drained=("a",)), FRESH)) == ["say running 1", "ask", "stop"]
    assert agent.leaving


STANDS_BY = running("bc", round=2, standbys=("d@0", "a@0"), given=settings(1, 4, spares=1))


@pytest.mark.parametrize(
    ("state", "leaves"),
    [
        pytest.param(STANDS_BY, False, id="nobody has scaled the run"),
        pytest.param(replace(STANDS_BY, target=2), True, id="there are spares enough"),
        pytest.param(replace(STANDS_BY, target=2, standbys=("a@0", "d@0")), False, id="it is a spare"),
        pytest.param(replace(STANDS_BY, target=2, standbys=("d@0",)), False, id="it has come since"),
        pytest.param(replace(STANDS_BY, target=2, participants=running("ab").participants), False, id="it takes part"),
    ],
)
def test_a_node_that_is_too_many_leaves(state: State, leaves: bool) -> None:
    agent = state_machine(NodeState.READY, 1)
    brief(agent.observe(state, FRESH))
    assert agent.leaving is leaves
    assert agent.notice is None or "scaled to 2" in agent.notice.reason


def test_a_success_is_left_standing() -> None:
    assert brief(state_machine(NodeState.SUCCEEDED, 1).depart()) == []


@pytest.mark.parametrize("node_state", [NodeState.FAILED, NodeState.READY], ids=lambda state: state.value)
def test_a_description_that_comes_late_is_published(node_state: NodeState) -> None:
    agent = state_machine(node_state, 1)
    agent.member = replace(agent.member, failure=failure("a", 1))
    described = replace(failure("a", 1), message="ValueError: described")
    assert brief(agent.failure_described(described)) == [f"say {node_state.value} 1"]
    assert agent.member.failure == described


def test_the_description_of_a_failure_that_nobody_waits_for_any_more_is_dropped() -> None:
    agent = state_machine(NodeState.RUNNING, 2, RUNS_2)
    assert brief(agent.failure_described(failure("a", 1))) == []
