"""The network, through the interface for an agent's rendezvous."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcelastic.agent.notifier import NetworkNotifier
from hpcelastic.network import Network
from hpcelastic.protocol.codec import decode, encode
from hpcelastic.protocol.state import Participant


@dataclass(frozen=True)
class Round:
    members: Sequence[Participant]


MEMBERS = [Participant(f"n{index}@0-a", 1, f"10.0.0.{index}", 4000, notification_port=4001) for index in range(3)]


def notifier(watched_calls: list[Any], *, healthy: bool) -> NetworkNotifier:
    """A notifier whose network records the nodes that it has to watch."""
    network = SimpleNamespace(healthy=healthy, watch=lambda *watched: watched_calls.append(watched))
    return NetworkNotifier(cast(Network, network), MEMBERS[0].node)


@pytest.mark.parametrize(
    ("members", "healthy", "expected"),
    [([], False, False), (MEMBERS[:1], False, True), (MEMBERS, False, False), (MEMBERS, True, True)],
    ids=["in no round", "alone", "silent neighbours", "living neighbours"],
)
def test_a_network_is_healthy_if_no_neighbour_is_silent(
    members: Sequence[Participant], healthy: bool, expected: bool
) -> None:
    it = notifier([], healthy=healthy)
    it.watch(members, 1)
    assert it.healthy is expected


def test_nodes_that_are_watched_already_are_not_passed_again() -> None:
    watched_calls: list[Any] = []
    it = notifier(watched_calls, healthy=True)
    for members, version in ((MEMBERS, 1), (MEMBERS, 1), (MEMBERS, 2), (MEMBERS[:1], 2), (MEMBERS[:1], 2)):
        it.watch(members, version)
    assert [(len(peers), version) for peers, version in watched_calls] == [(2, 1), (2, 2), (0, 2)]


def test_only_neighbours_with_a_network_are_watched() -> None:
    watched_calls: list[Any] = []
    members = [Participant(f"n{i}@0-a", 1, "10.0.0.1", 1, notification_port=4000 + i) for i in range(20)]
    members[3] = replace(members[3], notification_port=0)
    for rank in (0, 3, 7):
        it = NetworkNotifier(cast(Network, SimpleNamespace(watch=lambda *it: watched_calls.append(it))), f"n{rank}@0-a")
        for version, known in enumerate((members, decode(Round, encode(Round(members))).members)):
            it.watch(known, version)
    ports = [{peer.port - 4000 for peer in peers} for peers, _ in watched_calls]
    assert ports == [{1, 5, 19, 16}] * 2 + [set()] * 2 + [{8, 11, 6, 2}] * 2
    outside = NetworkNotifier(cast(Network, SimpleNamespace(watch=lambda *it: watched_calls.append(it))), "user@1")
    outside.watch(members, 1)
    assert watched_calls[-1] == ([], 1)
