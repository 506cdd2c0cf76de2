"""The referee of the simulator."""

from collections.abc import Iterable

import pytest

from hpcelastic.protocol.state import NodeState
from tests.protocol.builders import created, member, running
from tests.simulation.referee import Referee, Violation

INTERVAL = 60.0
"""Seconds between two readings of the leases by a node that is no leader."""

WRITERS = pytest.mark.parametrize(
    ("looks", "sees_at"),
    [
        pytest.param(range(0, 90, 2), 14.0, id="reads the leases often"),
        pytest.param([5.0, 25.0, 44.0], 25.0, id="reads the leases rarely"),
        pytest.param([], 10.0 + INTERVAL, id="is not known to read the leases"),
    ],
)


def form_round_with_dead_node(looks: Iterable[float], now: float) -> None:
    """Let node a form a round with node b, which died at 10 s. Node a has read the leases at the times ``looks``."""
    referee = Referee()
    for name in ("a", "b"):
        referee.published(member(name, NodeState.READY, 0))
    referee.gone_at["b@0"] = 10.0
    for look in looks:
        referee.looked("a@0", look)
    referee.committed(1, created(), running("ab"), "a@0", now, INTERVAL)


@WRITERS
def test_a_round_may_have_a_dead_node_until_the_writer_sees_its_lease_expire(
    looks: Iterable[float], sees_at: float
) -> None:
    form_round_with_dead_node(looks, sees_at + 19.9)


@WRITERS
def test_a_round_has_no_node_whose_lease_the_writer_has_seen_expire(looks: Iterable[float], sees_at: float) -> None:
    with pytest.raises(Violation, match=r"\['b@0'\] died long ago and are members of round 1"):
        form_round_with_dead_node(looks, sees_at + 20.1)
