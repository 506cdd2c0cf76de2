"""The network as an agent's rendezvous knows it."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcelastic.agent.notifier import NetworkNotifier
from hpcelastic.network import Network
from hpcelastic.protocol.state import Participant

MEMBERS = [Participant(f"n{index}@0-a", 1, f"10.0.0.{index}", 4000, notification_port=4001) for index in range(3)]


def notifier(asked: list[Any], *, healthy: bool) -> NetworkNotifier:
    """One whose network keeps what it is asked to watch."""
    network = SimpleNamespace(healthy=healthy, watch=lambda *watched: asked.append(watched))
    return NetworkNotifier(cast(Network, network))


@pytest.mark.parametrize(
    ("members", "healthy", "expected"),
    [([], False, False), (MEMBERS[:1], False, True), (MEMBERS, False, False), (MEMBERS, True, True)],
    ids=["in no round", "alone", "neighbours that cannot be heard", "neighbours that can be heard"],
)
def test_a_node_is_healthy_if_all_its_neighbours_can_be_heard(
    members: Sequence[Participant], healthy: bool, expected: bool
) -> None:
    it = notifier([], healthy=healthy)
    it.watch(members, 1)
    assert it.healthy is expected


def test_who_is_watched_already_is_not_told_to_the_network_again() -> None:
    asked: list[Any] = []
    it = notifier(asked, healthy=True)
    for members, version in ((MEMBERS, 1), (MEMBERS, 1), (MEMBERS, 2), (MEMBERS[:1], 2), (MEMBERS[:1], 2)):
        it.watch(members, version)
    assert [(len(peers), version) for peers, version in asked] == [(3, 1), (3, 2), (1, 2)]
