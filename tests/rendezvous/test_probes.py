"""The probes of leaders: to nodes whose renewal they have not seen, and to the neighbours of nodes with workers."""

from collections.abc import Collection

import pytest

from hpcelastic.protocol.peers import far
from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import Member, NodeState, Participant, Phase, Seen, State
from hpcelastic.rendezvous.probes import Probes

MEMBER = Member("a@0-1", NodeState.READY, 0, 1, "10.0.0.1", 4000)
UNPROVED = Seen(MEMBER, alive=True, proved=False)
EMPTY = State("run", Settings(NodeRange(1, 1)))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def requested(probes: Probes, *seen: Seen, rank: int = 0) -> list[str]:
    """Return the nodes that are requested now to renew their leases."""
    nodes = {s.member.node if s.member else "other@0-1": s for s in seen}
    return [target.node for target in probes.due(EMPTY, nodes, (), rank)]


def joining(size: int) -> State:
    """Return the state after the end of a round of nodes that have their ranks for names."""
    members = tuple(Participant(f"{rank}@0-1", 1, "10.0.0.1", 4000) for rank in range(size))
    return State("run", Settings(NodeRange(1, size)), Phase.JOINING, 1, members)


def probed_around(probes: Probes, busy: Collection[int], size: int = 100, rank: int = 0) -> list[int]:
    """Return the ranks of the nodes that are probed because of ``busy`` ones."""
    targets = probes.due(joining(size), {}, [f"{node}@0-1" for node in busy], rank)
    return sorted(int(target.node.partition("@")[0]) for target in targets)


def test_the_first_leader_probes_at_once_and_from_time_to_time() -> None:
    clock = Clock()
    probes = Probes(0.5, clock)
    assert requested(probes, UNPROVED) == [MEMBER.node]
    clock.now = 0.4
    assert requested(probes, UNPROVED) == []
    clock.now = 0.5
    assert requested(probes, UNPROVED) == [MEMBER.node]


def test_another_leader_probes_if_that_has_no_effect() -> None:
    clock = Clock()
    probes = Probes(0.5, clock)
    assert requested(probes, UNPROVED, rank=1) == []
    clock.now = 0.1
    assert requested(probes, UNPROVED, rank=1) == []
    clock.now = 0.2
    assert requested(probes, UNPROVED, rank=1) == [MEMBER.node]


def test_only_living_nodes_without_a_renewal_are_requested() -> None:
    others = [UNPROVED._replace(proved=True), UNPROVED._replace(alive=False), Seen(None, alive=True, proved=False)]
    for other in others:
        assert requested(Probes(0.5, Clock()), other) == []


def test_renewals_are_awaited_for_a_moment() -> None:
    clock = Clock()
    probes = Probes(0.5, clock)
    assert probes.until_answers < 0
    requested(probes, UNPROVED)
    clock.now = 0.04
    requested(probes, UNPROVED)
    assert probes.until_answers == pytest.approx(0.06)
    clock.now = 0.2
    assert probes.until_answers < 0


def test_the_neighbours_of_a_node_with_workers_are_probed() -> None:
    clock = Clock()
    probes = Probes(0.5, clock)
    distance = far(100)
    assert probed_around(probes, [50]) == [], "it may be about to publish that it has stopped"
    assert probes.until_answers == pytest.approx(0.1)
    clock.now = 0.1
    assert probed_around(probes, [50]) == [50 - distance, 49, 51, 50 + distance]
    assert probes.until_answers <= 0, "what they find is notified"
    clock.now = 0.3
    assert probed_around(probes, [50, 20]) == []
    clock.now = 0.4
    assert probed_around(probes, [50, 20]) == [20 - distance, 19, 21, 20 + distance]
    clock.now = 0.6
    assert probed_around(probes, [50]) == [50 - distance, 49, 51, 50 + distance]
    clock.now = 0.7
    assert probed_around(probes, []) == []
    clock.now = 1.2
    assert probed_around(probes, [50]) == [], "in a later round"


def after_patience(probes: Probes, clock: Clock, busy: Collection[int], size: int) -> list[int]:
    """Return the ranks that the first leader probes if ``busy`` nodes do not stop their workers soon."""
    assert probed_around(probes, busy, size) == []
    clock.now += 0.1
    return probed_around(probes, busy, size)


def test_another_leader_probes_the_neighbours_later() -> None:
    clock = Clock()
    probes = Probes(0.5, clock)
    assert probed_around(probes, [50], rank=2) == []
    clock.now = 0.4
    assert probed_around(probes, [50], rank=2) == []
    clock.now = 0.5
    assert len(probed_around(probes, [50], rank=2)) == 4


def test_a_common_neighbour_is_probed_once() -> None:
    clock = Clock()
    assert after_patience(Probes(0.5, clock), clock, [50, 52], size=100).count(51) == 1


def test_neighbours_are_not_probed_while_many_nodes_stop_their_workers() -> None:
    clock = Clock()
    assert after_patience(Probes(0.5, clock), clock, range(65), size=1000) == []
    assert after_patience(Probes(0.5, clock), clock, range(64), size=1000)


def test_neighbours_in_a_small_round_look_without_a_probe() -> None:
    clock = Clock()
    assert after_patience(Probes(0.5, clock), clock, [5], size=64) == []
    assert after_patience(Probes(0.5, clock), clock, [5], size=65)
