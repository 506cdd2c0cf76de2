"""The requests of leaders to nodes whose renewal they have not seen."""

from dataclasses import replace

import pytest

from hpcelastic.protocol.state import Member, NodeState, Seen
from hpcelastic.rendezvous.renewals import RenewalRequests

MEMBER = Member("a@0-1", NodeState.READY, 0, 1, "10.0.0.1", 4000)
UNPROVED = Seen(MEMBER, alive=True, proved=False)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_first_leader_requests_at_once_and_from_time_to_time() -> None:
    clock = Clock()
    requests = RenewalRequests(0.5, clock)
    assert requests.due([UNPROVED], rank=0) == [MEMBER]
    clock.now = 0.4
    assert requests.due([UNPROVED], rank=0) == []
    clock.now = 0.5
    assert requests.due([UNPROVED], rank=0) == [MEMBER]


def test_another_leader_requests_if_that_has_no_effect() -> None:
    clock = Clock()
    requests = RenewalRequests(0.5, clock)
    assert requests.due([UNPROVED], rank=1) == []
    clock.now = 0.1
    assert requests.due([UNPROVED], rank=1) == []
    clock.now = 0.2
    assert requests.due([UNPROVED], rank=1) == [MEMBER]


def test_only_living_nodes_without_a_renewal_are_requested() -> None:
    others = [replace(UNPROVED, proved=True), replace(UNPROVED, alive=False), Seen(None, alive=True, proved=False)]
    assert RenewalRequests(0.5, Clock()).due(others, rank=0) == []


def test_the_answers_are_awaited_for_a_moment() -> None:
    clock = Clock()
    requests = RenewalRequests(0.5, clock)
    assert requests.until_answers < 0
    requests.due([UNPROVED], rank=0)
    clock.now = 0.04
    requests.due([UNPROVED], rank=0)
    assert requests.until_answers == pytest.approx(0.06)
    clock.now = 0.2
    assert requests.until_answers < 0
