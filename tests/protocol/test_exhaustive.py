"""Every interleaving of small runs keeps every property. Without one of the rules, a property is violated."""

import warnings
from dataclasses import replace

import pytest

from tests.protocol.exhaustive import Search
from tests.protocol.model import Rules
from tests.protocol.under_test import ASSIGNMENT, DECIDE, NODE, Patch

EACH_ONCE = (("crash", 1), ("fail", 1), ("expire", 1), ("leave", 1), ("come", 1), ("close", 1))
TWO = Rules(nodes=2, max_nodes=2)
LATE = replace(TWO, faults=(("expire", 1),), lag=True, rounds=2)
FINAL = replace(TWO, final=True)
LOST = replace(TWO, faults=(("crash", 1), ("come", 1)))


class Count(UserWarning):
    """A warning that shows in pytest's summary how much was searched, even if the test passes."""


@pytest.mark.parametrize(
    ("rules", "depth"),
    [
        pytest.param(
            replace(TWO, restarts=0, faults=(("fail", 2), ("leave", 1))), None, id="two, failures, a departure"
        ),
        pytest.param(LATE, 22, id="two, a lease expires and reads are late"),
        pytest.param(LOST, 20, id="two, a loss and a return", marks=pytest.mark.nightly),
        pytest.param(
            replace(FINAL, faults=(("fail", 1), ("give up", 1))), None, id="two, final success, a failure, one gives up"
        ),
        pytest.param(replace(FINAL, faults=(("crash", 1), ("give up", 1))), None, id="two, final success, a loss"),
        pytest.param(replace(FINAL, faults=(("fail", 1), ("come", 1))), 18, id="two, final success, a newcomer"),
        pytest.param(replace(TWO, faults=(("warn", 1), ("fail", 1)), polls=True), None, id="two, a warning, a failure"),
        pytest.param(replace(TWO, faults=(("warn", 1), ("come", 1)), polls=True), 15, id="two, a warning, a newcomer"),
        pytest.param(Rules(nodes=3), None, id="three"),
        pytest.param(
            Rules(nodes=3, min_nodes=2, max_nodes=2, faults=(("fail", 1),)), None, id="three for two, a failure"
        ),
        pytest.param(
            Rules(nodes=3, min_nodes=2, faults=(("crash", 1),)), None, id="three, a loss", marks=pytest.mark.nightly
        ),
        pytest.param(
            Rules(nodes=3, min_nodes=2, faults=(("expire", 1),), lag=True),
            20,
            id="three, a lease expires",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            Rules(nodes=3, min_nodes=2, max_nodes=4, multiple=2, faults=(("crash", 1), ("come", 1))),
            12,
            id="groups of two, a loss and a newcomer",
        ),
        pytest.param(
            Rules(nodes=3, min_nodes=2, faults=EACH_ONCE, lag=True),
            10,
            id="three, each fault once",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_no_property_is_violated(rules: Rules, depth: int | None, request: pytest.FixtureRequest) -> None:
    searched = Search(rules).run(depth)
    assert not searched.broken
    assert searched.complete == (depth is None), searched
    warnings.warn(f"{request.node.callspec.id}: {searched}", Count, stacklevel=1)


@pytest.mark.parametrize(
    ("rules", "broken"),
    [
        pytest.param(replace(LATE, settled=False), "run at the same time", id="a regained lease is used at once"),
        pytest.param(replace(LATE, guard=False), "run at the same time", id="a lease expires before the guard kills"),
        pytest.param(replace(LATE, fresh=False), "run at the same time", id="an old observation is used"),
        pytest.param(replace(TWO, compare=False), "a run that has|was followed by", id="a commit without compare"),
    ],
)
def test_without_a_rule_a_property_is_violated(rules: Rules, broken: str) -> None:
    with pytest.raises(AssertionError, match=broken):
        raise AssertionError(Search(rules).run(40, 300_000).broken)


@pytest.mark.parametrize(
    ("rules", "module", "old", "new", "broken"),
    [
        pytest.param(
            TWO, DECIDE, "    if busy:\n", "    if False:\n", "run at the same time", id="no wait for running workers"
        ),
        pytest.param(
            LOST,
            DECIDE,
            "if len({m.name for m in members}) == len(members):",
            "if True:",
            "is a member twice",
            id="two incarnations of a node",
        ),
        pytest.param(
            replace(TWO, faults=(("crash", 1),)),
            DECIDE,
            " or not _alive(view, node)",
            "",
            "can't end any more",
            id="a loss is not seen",
        ),
        pytest.param(
            TWO,
            DECIDE,
            "if len(done) == len(state.participants):",
            "if done:",
            "without all",
            id="success of some nodes",
        ),
        pytest.param(
            replace(FINAL, faults=(("fail", 1),)),
            DECIDE,
            "    if finished:\n",
            "    if False:\n",
            "which was final",
            id="a round follows a final success",
        ),
        pytest.param(
            TWO, DECIDE, "        round=state.round + 1,", "        round=state.round,", "was followed", id="same round"
        ),
        pytest.param(
            TWO,
            DECIDE,
            "return member.node_state is NodeState.LEFT or "
            "(member.node_state is NodeState.READY and member.round >= state.round)",
            "return member.node_state in (NodeState.LEFT, NodeState.READY)",
            "run at the same time",
            id="ready for an older round counts as stopped",
        ),
        pytest.param(
            replace(TWO, faults=(("expire", 1), ("fail", 1))),
            DECIDE,
            " if m.fenced != state.round}",
            "}",
            "charged for nothing",
            id="the failure of a fenced node spends a restart",
        ),
        pytest.param(
            TWO,
            DECIDE,
            "return replace(state, cause=None, grace=0.0, spent=spent,",
            "return replace(state, grace=0.0, spent=spent,",
            "cause .* in phase running",
            id="a failure spends two restarts",
        ),
        pytest.param(
            TWO,
            DECIDE,
            "state, phase=Phase.JOINING, cause=cause, grace=grace, lost=lost, standbys=(), reason=reason)",
            "state, phase=Phase.CLOSED, cause=None, standbys=(), reason=reason)",
            "must not take a run from running to closed",
            id="a transition that is not in the table",
        ),
        pytest.param(
            TWO,
            ASSIGNMENT,
            "first_rank=sum(sizes[:group_rank])",
            "first_rank=0",
            "the group disagrees",
            id="two nodes get the same ranks",
        ),
        pytest.param(
            replace(TWO, faults=(("fail", 1),)),
            NODE,
            "return machine._park(state.reason)",
            "return machine._ready(state.round).then(lambda machine: machine._park(state.reason))",
            "run at the same time",
            id="a node is ready before its workers are parked",
        ),
        pytest.param(
            replace(TWO, faults=(("fail", 1), ("warn", 1))),
            NODE,
            "return machine._stop(notice.reason)",
            "return Transition(machine)",
            "leaves while workers of it are parked",
            id="a node leaves beside its parked workers",
        ),
        pytest.param(
            LATE,
            NODE,
            "now < lease.end",
            "True",
            "run at the same time",
            id="workers start on an old observation",
        ),
    ],
)
def test_an_inserted_fault_is_found(rules: Rules, module: str, old: str, new: str, broken: str) -> None:
    with pytest.raises(AssertionError, match=broken):
        raise AssertionError(Search(replace(rules, patches=(Patch(module, old, new),))).run(40, 300_000).broken)


def test_the_shortest_history_is_shown() -> None:
    searched = Search(replace(LATE, settled=False)).run()
    *_, last = searched.broken.splitlines()
    assert "runs round 2" in last
    assert "has its lease regained" in searched.broken


def test_an_incomplete_search_is_reported() -> None:
    searched = Search(TWO).run(depth=3)
    assert (searched.complete, searched.depth) == (False, 3)
    assert str(searched) == f"{searched.states} states to depth 3"
