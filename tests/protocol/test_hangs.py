"""The examination of a round that makes no progress, in the state of the run."""

from dataclasses import replace

import pytest

from hpcelastic.protocol.findings import Hang
from hpcelastic.protocol.hangs import conclude, examine, participants_of
from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import Participant, Phase, State

STATE = State(
    "r",
    Settings(NodeRange(2, 3)),
    Phase.RUNNING,
    4,
    (Participant("a@1", 2, "10.0.0.1", 1), Participant("b@1", 1, "10.0.0.2", 1), Participant("c@1", 2, "10.0.0.3", 1)),
)


def examined(state: State = STATE) -> State:
    decided = examine(state, 4, "b@1", "no progress", 0).next
    assert decided is not None
    return decided


def test_the_first_request_wins() -> None:
    state = examined()
    assert state.hang == Hang(1, 4, "b@1") and state.phase is Phase.RUNNING and state.reason == "no progress"
    assert examine(state, 4, "c@1", "no progress", 0).next is None
    again = examine(state, 4, "c@1", "still none", 1).next
    assert again is not None and again.hang == Hang(2, 4, "c@1")


@pytest.mark.parametrize(("phase", "round"), [(Phase.JOINING, 4), (Phase.RUNNING, 5), (Phase.SUCCEEDED, 4)])
def test_a_request_for_another_round_changes_nothing(phase: Phase, round: int) -> None:
    assert examine(replace(STATE, phase=phase, round=round), 4, "b@1", "no progress", 0).next is None


def test_an_examination_is_concluded_once() -> None:
    state = conclude(examined(), 1, "rank 2 hangs", (2,), "restart").next
    assert state is not None
    assert state.hang == Hang(1, 4, "b@1", "rank 2 hangs", (2,), "restart") and state.drained == ()
    assert conclude(state, 1, "another verdict", (3,), "report").next is None
    assert conclude(replace(examined(), phase=Phase.JOINING), 1, "rank 2 hangs", (2,), "restart").next is None
    assert conclude(STATE, 1, "rank 2 hangs", (2,), "restart").next is None


def test_excluded_nodes_are_drained() -> None:
    state = conclude(examined(), 1, "rank 4 hangs", (4,), "exclude").next
    assert state is not None and state.hang is not None
    assert state.drained == ("c",) and state.hang.action == "exclude"


def test_no_node_is_excluded_that_the_run_needs() -> None:
    state = conclude(examined(), 1, "ranks 2 and 4 hang", (2, 4), "exclude").next
    assert state is not None and state.hang is not None
    assert state.drained == () and state.hang.action == "restart"


def test_no_node_is_excluded_whose_group_the_run_needs() -> None:
    """Without it, the others at its place make no whole group."""
    nodes = NodeRange(2, 4, multiple=2, within="switch")
    members = tuple(
        replace(p, topology=f"s{i // 2}") for i, p in enumerate((*STATE.participants, STATE.participants[0]))
    )
    members = (*members[:3], replace(members[3], node="d@1"))
    state = replace(STATE, settings=replace(STATE.settings, nodes=nodes), participants=members)
    for ranks, action in (((2,), "exclude"), ((2, 4), "restart")):
        decided = conclude(examined(state), 1, "it hangs", ranks, "exclude").next
        assert decided is not None and decided.hang is not None and decided.hang.action == action


def test_the_participants_of_ranks() -> None:
    names = [[p.name for p in participants_of(STATE, ranks)] for ranks in ((0, 1), (2,), (1, 3), (), (7,))]
    assert names == [["a"], ["b"], ["a", "c"], [], []]
