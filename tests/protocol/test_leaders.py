from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from hpcelastic.protocol.leaders import first_turn, leader_rank, leaders, precedence, rivals, stand_in_turn, watches
from hpcelastic.protocol.state import Member, NodeState, Participant, Phase, Seen, State, View
from tests.protocol.builders import member, running


def names(state: State, *seen: Seen) -> list[str]:
    view = View({s.member.node: s for s in seen if s.member})
    return [leader.name for leader in leaders(state, view, len(seen))]


def test_the_first_members_of_the_round_are_leaders() -> None:
    assert names(running("dbca")) == ["d", "b", "c"]


def large(count: int = 90, **changes: Any) -> State:
    """Return a state in which a round runs on so many nodes, 0 and so on."""
    members = tuple(Participant(f"{rank}@0", 2, f"host-{rank}", 1000) for rank in range(count))
    return replace(running("", **changes), participants=members)


def view_without(*dead: int) -> View:
    seen = {f"{rank}@0": Seen(replace(member("a", NodeState.RUNNING, 1), node=f"{rank}@0"), False) for rank in dead}
    return View(seen)


@pytest.mark.parametrize(
    ("count", "dead", "leading"),
    [
        pytest.param(64, (), [0, 1, 2], id="a round that is not large"),
        pytest.param(65, (), [0, 22, 44], id="as many nodes as make no thirds"),
        pytest.param(90, (), [0, 30, 60], id="all are alive"),
        pytest.param(90, (0, 1, 30), [2, 31, 60], id="some first ones are dead"),
        pytest.param(90, range(30), [30, 60], id="a third is dead"),
        pytest.param(90, range(89), [89], id="one is left"),
    ],
)
def test_the_leaders_of_a_large_round_are_apart(count: int, dead: Sequence[int], leading: list[int]) -> None:
    found = leaders(large(count), view_without(*dead), count)
    assert [int(leader.name) for leader in found] == leading


def test_ready_nodes_lead_if_the_death_of_one_member_is_not_known_after_a_requeue() -> None:
    state = large(phase=Phase.JOINING)
    new = [
        Seen(replace(member("a", NodeState.READY, 1, order=rank, job_nodes=90), node=f"{rank}@1"), True)
        for rank in range(90)
    ]
    view = View({**view_without(*range(50), *range(51, 90)).nodes, **{s.member.node: s for s in new if s.member}})
    found = leaders(state, view, 180)
    assert [leader.node for leader in found] == ["50@0", "0@1", "1@1"]
    assert leader_rank(found, state, new[0].member, 180) == 1  # type: ignore[arg-type]  # has a member


def test_a_ready_member_leads_once() -> None:
    state, last = large(phase=Phase.JOINING), replace(member("a", NodeState.READY, 1), node="89@0")
    view = View({**view_without(*range(89)).nodes, last.node: Seen(last, True)})
    assert [leader.node for leader in leaders(state, view, 90)] == ["89@0"]


def test_the_lost_node_is_no_leader_of_its_third() -> None:
    state = large(phase=Phase.JOINING, lost="30@0")
    assert [leader.name for leader in leaders(state, View({}), 90)] == ["0", "31", "60"]


def test_dead_nodes_are_not_leaders() -> None:
    state = running("dbca")
    assert names(state, Seen(member("d", NodeState.RUNNING, 1), alive=False)) == ["b", "c", "a"]
    teller = member("a", NodeState.RUNNING, 1, dead=(state.participants[1].node,))
    assert names(state, Seen(teller, alive=True)) == ["d", "c", "a"]


def test_the_node_whose_loss_has_ended_the_round_is_no_leader() -> None:
    state = running("dbca")
    assert names(replace(state, phase=Phase.JOINING, lost=state.participants[0].node)) == ["b", "c", "a"]


def test_a_node_that_was_lost_and_is_in_the_next_round_is_a_leader() -> None:
    state = running("dbca")
    assert names(replace(state, lost=state.participants[0].node)) == ["d", "b", "c"]


def test_the_neighbours_of_a_lost_node_are_rivals() -> None:
    before = running("abcdefghi")
    ended = replace(before, phase=Phase.JOINING)
    assert not rivals(before, ended)
    lost = replace(ended, lost=before.participants[4].node)
    assert [p.name for p in rivals(before, lost)] == ["i", "a", "f", "d"]
    assert not rivals(replace(before, participants=()), lost)


def test_before_the_first_round_the_first_nodes_of_the_job_are_leaders() -> None:
    state = replace(running(""), round=0, participants=())
    seen = [
        Seen(member(name, NodeState.READY, 0, order=order), alive=True)
        for name, order in zip("abcd", (3, 2, 1, 0), strict=True)
    ]
    assert names(state, *seen) == ["d", "c", "b"]
    seen[3] = seen[3]._replace(alive=False)
    assert names(state, *seen) == ["c", "b", "a"]


def test_without_members_newcomers_are_leaders() -> None:
    state = running("a")
    gone, new = Seen(member("a", NodeState.RUNNING, 1), alive=False), Seen(member("b", NodeState.READY, 1), alive=True)
    assert names(state, gone, new) == ["b"]


def test_without_nodes_there_is_no_leader() -> None:
    assert names(replace(running(""), round=0, participants=())) == []


def test_a_member_that_has_left_is_no_leader() -> None:
    assert names(running("dbca"), Seen(member("d", NodeState.LEFT, 1), alive=True)) == ["b", "c", "a"]


def test_only_ready_nodes_lead_if_no_member_is_there() -> None:
    """A node that is excluded leaves a record, which is no lease that it renews."""
    state = replace(running(""), round=0, participants=())
    others = [Seen(member(name, NodeState.LEFT, 0, order=0), alive=True) for name in "ab"]
    assert names(state, *others, Seen(member("c", NodeState.READY, 0, order=1), alive=True)) == ["c"]


def test_of_many_nodes_those_lead_that_look_first() -> None:
    """They know that they lead."""
    state = replace(running(""), round=0, participants=())
    nodes = [replace(member("x", NodeState.READY, 0, order=0, job_nodes=1), node=f"x{i}@0") for i in range(200)]
    found = leaders(state, View({own.node: Seen(own, alive=True) for own in nodes}), 200)
    first = sorted(nodes, key=lambda own: stand_in_turn(replace(state, phase=Phase.JOINING), own, 200_000))[:3]
    assert {leader.node for leader in found} == {own.node for own in first}


@pytest.mark.parametrize(
    ("order", "job_nodes", "phase", "turn", "rank"),
    [
        pytest.param(0, 100, Phase.JOINING, 0.0, 3, id="the first node of a large job"),
        pytest.param(2, 100, Phase.JOINING, 0.0, 5, id="the third one"),
        pytest.param(5, 100, Phase.JOINING, 3.0, None, id="when twice as many look"),
        pytest.param(95, 100, Phase.JOINING, 15.0, None, id="one of the last ones"),
        pytest.param(6399, 10_000, Phase.JOINING, 199.96875, None, id="one of very many"),
        pytest.param(0, 64, Phase.JOINING, inf, None, id="a job that is not large"),
        pytest.param(0, 100, Phase.RUNNING, inf, None, id="while a round runs"),
    ],
)
def test_while_a_round_forms_nodes_of_a_large_job_stand_in_for_leaders_one_after_the_other(
    order: int, job_nodes: int, phase: Phase, turn: float, rank: int | None
) -> None:
    state = replace(running("dbca"), phase=phase)
    own = member("x", NodeState.READY, 1, order=order, job_nodes=job_nodes)
    assert leader_rank(leaders(state, View({}), job_nodes), state, own, job_nodes) == rank
    assert stand_in_turn(state, own, job_nodes) == turn


@pytest.mark.parametrize(("count", "name", "turn"), [(90, "x@0", 11.32), (64, "x@0", inf), (90, "3@0", 3.0)])
def test_the_nodes_of_small_jobs_in_a_large_run_look_too(count: int, name: str, turn: float) -> None:
    """They continue it, or were in its last round."""
    own = replace(member("x", NodeState.READY, 1, order=3, job_nodes=4), node=name)
    assert stand_in_turn(large(count, phase=Phase.JOINING), own, count) == pytest.approx(turn, abs=0.01)


@pytest.mark.parametrize("members", [200, 1, 0], ids=["a large run is continued", "a small run is", "a run begins"])
def test_of_many_nodes_with_the_same_order_few_look_at_once(members: int) -> None:
    """They are nodes of many small jobs, or without a job."""
    state = large(members, phase=Phase.JOINING)
    nodes = [replace(member("x", NodeState.READY, 1, order=0, job_nodes=1), node=f"x{i}@0") for i in range(200)]
    found = leaders(state, View({}), 200)
    ranks = [rank for own in nodes if (rank := leader_rank(found, state, own, 200)) is not None]
    assert 0 < len(ranks) < 10
    turns = sorted(stand_in_turn(state, own, 200) for own in nodes)
    assert turns[20] > 5 and turns[100] > 12 and turns[-1] < 20


def test_another_number_of_nodes_hardly_changes_a_turn() -> None:
    """More nodes become known while a node waits for its turn."""
    state = large(1000, phase=Phase.JOINING)
    for i in range(200):
        own = replace(member("x", NodeState.READY, 1, order=0, job_nodes=1), node=f"x{i}@0")
        turns = [stand_in_turn(state, own, nodes) for nodes in (1000, 1006, 1100)]
        assert turns == sorted(turns) and turns[-1] < 1.1 * turns[0] + 1


@pytest.mark.parametrize("job_nodes", [1, 100], ids=["no job is large", "one job is large"])
def test_two_nodes_of_a_large_run_never_wait_for_each_other(job_nodes: int) -> None:
    """Each knows another number of nodes, and has not seen all of them."""
    fields = [(f"x{i}@0", i % job_nodes, job_nodes if i < 100 else 1) for i in range(300)]
    orders = [sorted(fields, key=lambda each: precedence(*each, nodes)) for nodes in range(65, 1000, 17)]
    assert all(order == orders[0] for order in orders)


def test_a_small_run_without_many_nodes_needs_no_other_leaders() -> None:
    own = member("x", NodeState.READY, 1, order=0, job_nodes=1)
    assert stand_in_turn(large(1, phase=Phase.JOINING), own, 64) == inf


def waiting(count: int) -> list[Member]:
    return [replace(member("x", NodeState.READY, 1, order=i), node=f"x{i}@0") for i in range(count)]


@pytest.mark.parametrize("members", [8, 1000])
def test_a_few_of_the_nodes_outside_a_round_watch_its_members(members: int) -> None:
    state, many = large(members), waiting(1000)
    assert 0 < sum(watches(state, own, members + 1000) for own in many) < 30
    assert all(watches(state, own, members + 8) for own in many[:8]), "of few nodes, each does"
    assert all(watches(state, own, members) for own in many), "the number of nodes is not known yet"
    assert not watches(state, replace(many[0], node="1@0"), members + 8)
    assert not watches(state, replace(many[0], node_state=NodeState.LEFT), members + 8)


def test_a_few_of_many_nodes_watch_the_leaders_while_a_round_forms() -> None:
    state, many = large(8, phase=Phase.JOINING), waiting(1000)
    assert 0 < sum(watches(state, own, 1000) for own in many) < 30
    assert not any(watches(state, own, 64) for own in many), "the nodes of a small run all read the leases"
    assert all(watches(large(1000, phase=Phase.JOINING), own, 1004) for own in many), "few are outside the last round"
    assert 0 < sum(watches(large(1000, phase=Phase.JOINING), own, 1000) for own in many) < 30, "it is not known yet"
    assert not any(watches(replace(state, phase=Phase.FAILED), own, 1000) for own in many)


def test_a_leader_has_its_place_as_rank() -> None:
    state = running("dbca")
    found = leaders(state, View({}), 4)
    ranks = [leader_rank(found, state, member(name, NodeState.RUNNING, 1), 4) for name in "dbca"]
    assert ranks == [0, 1, 2, None]


@pytest.mark.parametrize(
    ("order", "job_nodes", "seconds"),
    [
        pytest.param(60, 64, 0.0, id="a job that is not large"),
        pytest.param(0, 0, 0.0, id="an unknown job"),
        pytest.param(2, 65, 0.0, id="one of the first nodes of a large job"),
        pytest.param(5, 65, 3.0, id="one of the next ones"),
        pytest.param(11, 10_000, 6.0, id="one of those after them"),
    ],
)
def test_the_nodes_of_a_large_job_look_one_after_the_other(order: int, job_nodes: int, seconds: float) -> None:
    assert first_turn(replace(member("a", NodeState.READY, 0), order=order, job_nodes=job_nodes)) == seconds
