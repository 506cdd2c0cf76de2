"""The consequences of a publication of a node for the round that runs."""

from dataclasses import replace

import pytest

from hpcelastic.protocol.publications import ends_the_round, grows, reports_loss
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Member, NodeState, Notice, Phase, State, participants_of

A, B = (Member(f"{name}@0", NodeState.RUNNING, 2, 4, "10.0.0.1", 1) for name in "ab")
RUNNING = State("r", Settings(), Phase.RUNNING, 2, participants_of([A, B]))
LOST = replace(A, dead=(B.node,))


@pytest.mark.parametrize(
    ("now", "before", "reports"),
    [
        pytest.param(LOST, A, True, id="a new report"),
        pytest.param(LOST, None, True, id="the first publication"),
        pytest.param(replace(LOST, progress=7), LOST, False, id="a report that was published before"),
        pytest.param(replace(A, dead=("a@9",)), A, False, id="an incarnation that is no member"),
    ],
)
def test_a_new_report_of_a_member_is_a_loss(now: Member, before: Member | None, reports: bool) -> None:
    assert reports_loss(RUNNING, now, before) == ends_the_round(RUNNING, now, before) == reports


@pytest.mark.parametrize(
    ("now", "ends"),
    [
        pytest.param(A, False, id="nothing new"),
        pytest.param(replace(A, progress=1), False, id="progress"),
        pytest.param(replace(A, node_state=NodeState.SUCCEEDED), False, id="success"),
        pytest.param(replace(A, node_state=NodeState.FAILED), True, id="a failure"),
        pytest.param(replace(A, node_state=NodeState.LEFT), True, id="a departure"),
        pytest.param(replace(A, node_state=NodeState.READY), True, id="stopped workers"),
        pytest.param(replace(A, node_state=NodeState.READY, round=1), False, id="workers of the last round"),
        pytest.param(replace(A, leaving=Notice("the job ends", 9.0)), True, id="a notice"),
        pytest.param(replace(A, local_world_size=5), True, id="another worker"),
        pytest.param(replace(A, local_world_size=3), False, id="a worker less"),
    ],
)
def test_some_publications_end_a_round_that_runs(now: Member, ends: bool) -> None:
    assert ends_the_round(RUNNING, now, A) == ends
    assert not ends_the_round(replace(RUNNING, phase=Phase.JOINING), now, A)


def test_only_a_running_member_of_the_round_grows() -> None:
    more = replace(A, local_world_size=5)
    assert grows(RUNNING, more)
    assert not grows(RUNNING, replace(more, node_state=NodeState.READY))
    assert not grows(RUNNING, replace(more, node="c@0"))
