"""The tables of transitions, the checks that refuse other transitions, and the page that shows the tables."""

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.protocol import decide as module
from hpcelastic.protocol.decide import Decision, close, decide, reopen
from hpcelastic.protocol.state import NodeState, Phase, State
from hpcelastic.protocol.transitions import NODE_EDGES, RUN_EDGES, Mover, checked, may_publish
from tests.protocol.builders import created, ready, running, view

DOCS = Path(__file__).parents[2] / "docs"


def targets(mover: Mover, phase: Phase) -> set[Phase]:
    return {edge.target for edge in RUN_EDGES if (edge.mover, edge.source) == (mover, phase)}


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        pytest.param(Phase.JOINING, {Phase.JOINING, Phase.RUNNING, Phase.SUCCEEDED, Phase.FAILED}, id="joining"),
        pytest.param(Phase.RUNNING, {Phase.JOINING, Phase.SUCCEEDED}, id="running"),
        pytest.param(Phase.SUCCEEDED, set(), id="succeeded"),
        pytest.param(Phase.FAILED, set(), id="failed"),
        pytest.param(Phase.CLOSED, set(), id="closed"),
    ],
)
def test_the_transitions_of_agents(phase: Phase, expected: set[Phase]) -> None:
    assert targets(Mover.DECIDE, phase) == expected


@pytest.mark.parametrize("phase", Phase)
def test_the_user_closes_a_run_that_has_not_ended(phase: Phase) -> None:
    state = State("run", created().settings, phase)
    assert (close(state, "enough").next is not None) == (targets(Mover.CLOSE, phase) == {Phase.CLOSED})


@pytest.mark.parametrize("phase", Phase)
def test_the_user_reopens_a_run_in_any_phase(phase: Phase) -> None:
    state = State("run", created().settings, phase)
    assert {reopen(state, state.settings).phase} == targets(Mover.REOPEN, phase)


@pytest.mark.parametrize(
    ("mover", "old", "new"),
    [
        pytest.param(Mover.DECIDE, Phase.SUCCEEDED, Phase.JOINING, id="only the user reopens"),
        pytest.param(Mover.DECIDE, Phase.RUNNING, Phase.CLOSED, id="only the user closes"),
        pytest.param(Mover.DECIDE, Phase.RUNNING, Phase.FAILED, id="a failure is counted when all nodes have returned"),
        pytest.param(Mover.DECIDE, Phase.FAILED, Phase.SUCCEEDED, id="a failed run does not succeed"),
        pytest.param(Mover.STEER, Phase.JOINING, Phase.RUNNING, id="a user's request forms no round"),
        pytest.param(Mover.CLOSE, Phase.FAILED, Phase.CLOSED, id="a final phase does not change"),
    ],
)
def test_other_transitions_are_refused(mover: Mover, old: Phase, new: Phase) -> None:
    state = replace(running("ab"), phase=old)
    with pytest.raises(AssertionError, match=f"{mover.value} must not take a run from {old.value} to {new.value}"):
        checked(mover, state, replace(state, phase=new))


def test_decide_refuses_a_transition_that_is_not_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def forms(state: State, *_: Any) -> Decision:
        return Decision(replace(state, phase=Phase.CLOSED), "a mistake")

    monkeypatch.setattr(module, "_joining", forms)
    with pytest.raises(AssertionError, match="must not take a run from joining to closed"):
        decide(created(), view(ready("a", 0)))


@pytest.mark.parametrize("node_state", NodeState)
def test_a_node_that_has_left_publishes_no_other_state(node_state: NodeState) -> None:
    assert may_publish(NodeState.LEFT, node_state) == (node_state is NodeState.LEFT)


@pytest.mark.parametrize("node_state", [NodeState.SUCCEEDED, NodeState.FAILED])
def test_only_a_node_with_workers_publishes_their_end(node_state: NodeState) -> None:
    assert {edge.source for edge in NODE_EDGES if edge.target is node_state} == {NodeState.RUNNING}


def test_every_transition_is_in_its_table_once() -> None:
    assert len({(e.mover, e.source, e.target) for e in RUN_EDGES}) == len(RUN_EDGES)
    assert len({(e.source, e.target) for e in NODE_EDGES}) == len(NODE_EDGES)


def test_mermaid_can_read_every_condition() -> None:
    """There, a colon begins and ends a label, and a semicolon ends the line."""
    assert not [edge.when for edge in (*RUN_EDGES, *NODE_EDGES) if set(edge.when) & set(":;#")]


def test_the_page_shows_the_tables() -> None:
    page = (DOCS / "protocol.md").read_text()
    drawn = runpy.run_path(str(DOCS / "make_diagram.py"))["drawn"]
    assert drawn(page) == page, "run python docs/make_diagram.py"
    assert all(f"{edge.source.value} --> {edge.target.value}" in page for edge in (*RUN_EDGES, *NODE_EDGES))


def test_a_page_without_markers_for_a_diagram_is_refused() -> None:
    with pytest.raises(ValueError, match="0 places for the diagram 'run'"):
        runpy.run_path(str(DOCS / "make_diagram.py"))["drawn"]("no marks here")
