from dataclasses import replace
from itertools import pairwise

import pytest

from hpcelastic.protocol.polling import PollResult, PollSchedule
from hpcelastic.protocol.settings import RendezvousSettings
from hpcelastic.protocol.state import Phase

LEASE, POLL = 12.0, 0.5
RUNNING = PollResult(Phase.RUNNING, rank=None, nodes=8, network_healthy=True, urgent=False)
JOINING = replace(RUNNING, phase=Phase.JOINING)


class PollingNode:
    """The poll schedule of a node, on a clock that the test advances."""

    def __init__(self, node: str = "") -> None:
        self.now = 100.0
        self.schedule = PollSchedule(RendezvousSettings(lease=LEASE, margin=1, poll=POLL), lambda: self.now, node)

    def poll(self, result: PollResult, took: float = 0.0, read: bool = True) -> float:
        """Poll. Return the seconds until the next poll."""
        self.now += took
        self.schedule.record_poll(self.now - took, result, read)
        return self.schedule.pause


def test_a_node_that_has_never_polled_polls_at_once() -> None:
    assert PollingNode().schedule.poll_due


@pytest.mark.parametrize(
    ("result", "pause"),
    [
        pytest.param(RUNNING, 2 * LEASE, id="no event"),
        pytest.param(replace(RUNNING, nodes=10_000), 78.125, id="no event, on very many nodes"),
        pytest.param(replace(RUNNING, rank=2), LEASE / 6, id="a leader reads the leases"),
        pytest.param(replace(RUNNING, rank=0, nodes=1), LEASE / 3, id="the only node"),
        pytest.param(replace(RUNNING, network_healthy=False), POLL, id="the network does not work"),
        pytest.param(replace(RUNNING, network_healthy=False, nodes=1280), 10.0, id="many nodes without a network"),
        pytest.param(replace(RUNNING, urgent=True, nodes=1280), POLL, id="a neighbour is silent"),
        pytest.param(JOINING, POLL, id="a round forms"),
        pytest.param(replace(JOINING, nodes=1280), 10.0, id="a round of many forms"),
        pytest.param(replace(JOINING, nodes=1280, rank=1), POLL, id="a round of many forms, on a leader"),
        pytest.param(
            replace(JOINING, nodes=10_000, rank=0), POLL, id="a round of very many forms, on the first leader"
        ),
        pytest.param(replace(JOINING, nodes=10_000, rank=2), 2.0, id="a round of very many forms, on the third leader"),
        pytest.param(replace(RUNNING, phase=Phase.SUCCEEDED), POLL, id="the run has ended"),
    ],
)
def test_the_poll_interval_without_notifications(result: PollResult, pause: float) -> None:
    assert PollingNode().poll(result) == pytest.approx(pause)


@pytest.mark.parametrize(
    ("result", "most"),
    [
        pytest.param(RUNNING, 2 * LEASE, id="no event"),
        pytest.param(replace(RUNNING, network_healthy=False, nodes=1280), 10.0, id="the network does not work"),
    ],
)
def test_nodes_poll_one_after_the_other(result: PollResult, most: float) -> None:
    pauses = [PollingNode(f"n{i}@0-ab").poll(result) for i in range(8)]
    assert len(set(pauses)) == 8
    assert all(0.8 * most <= pause <= most for pause in pauses)


def test_all_nodes_together_have_a_limited_poll_rate() -> None:
    for nodes in (1, 64, 128, 1024, 10_000):
        pause = PollingNode().poll(replace(JOINING, nodes=nodes))
        assert nodes / pause <= 128 + 1e-6 and pause >= POLL


def test_all_nodes_poll_at_once_after_a_newer_version() -> None:
    for rank in (None, 0, 2):
        node = PollingNode()
        node.poll(replace(RUNNING, rank=rank, nodes=1024))
        node.schedule.record_notification(newer=True)
        assert node.schedule.pause == pytest.approx(0.01)
        node.now += 0.01
        assert node.schedule.poll_due


@pytest.mark.parametrize(
    ("rank", "nodes", "pause"),
    [(0, 8, 0.01), (1, 8, 0.2), (2, 8, 0.4), (2, 1000, 0.4), (1, 4000, 0.4), (0, 4000, 0.01)],
)
def test_leaders_poll_and_read_one_after_the_other_after_a_publication(rank: int, nodes: int, pause: float) -> None:
    node = PollingNode()
    node.poll(replace(JOINING, rank=rank, nodes=nodes))
    node.schedule.record_notification(newer=False)
    assert node.schedule.pause == pytest.approx(pause)
    node.now += node.schedule.pause
    assert node.schedule.poll_due and node.schedule.read_due


def test_a_repeated_notification_does_not_delay_the_poll() -> None:
    node = PollingNode()
    node.poll(replace(JOINING, rank=2))
    node.schedule.record_notification(newer=False)
    node.now += 0.3
    node.schedule.record_notification(newer=False)
    assert node.schedule.pause == pytest.approx(0.1)


def test_publications_do_not_exceed_the_poll_rate_of_all_nodes() -> None:
    node = PollingNode()
    node.poll(replace(RUNNING, nodes=512))
    node.schedule.record_notification(newer=False)
    assert node.schedule.pause == pytest.approx(16.0)
    node.now += 17
    node.schedule.record_notification(newer=False)
    assert node.schedule.poll_due and node.schedule.read_due


@pytest.mark.parametrize("nodes", [1, 64, 128, 1024, 10_000])
def test_all_nodes_together_have_a_limited_rate_of_lease_reads(nodes: int) -> None:
    node, interval = PollingNode("n1@0-ab"), max(POLL, nodes**2 / 16384)
    waits = []
    for _ in range(4):
        began = node.now
        node.poll(replace(JOINING, nodes=nodes))
        while not node.schedule.read_due:
            node.now += node.schedule.pause + 1e-6
            if not node.schedule.read_due:
                node.poll(replace(JOINING, nodes=nodes), read=False)
        waits.append(node.now - began)
    assert waits[1:] == pytest.approx([interval] * 3, rel=0.01)
    assert POLL <= waits[0] <= interval + max(POLL, nodes / 128)


def test_the_first_of_many_nodes_reads_soon() -> None:
    """They have read the leases together, and all leaders are lost."""
    nodes = [PollingNode(f"n{i}@0-ab") for i in range(100)]
    for node in nodes:
        node.poll(replace(JOINING, nodes=1024))
    times, alone = [], 0.0
    while nodes and alone < 100.0:
        alone += 0.25
        for node in [*nodes]:
            node.now += 0.25
            if node.schedule.read_due:
                times.append(alone)
                nodes.remove(node)
    assert len(times) == 100 and times[0] < 10.0  # the next poll of a node is after 6.4 to 8 s
    assert max(after - before for before, after in pairwise(times)) < 8.0


def test_polls_without_the_leases_do_not_delay_their_reading() -> None:
    node = PollingNode()
    node.poll(replace(JOINING, nodes=512))
    until = 112.0  # the moment of this node
    while node.now < until - 1.0:
        node.now += 1.0
        node.schedule.record_notification(newer=True)
        assert node.schedule.poll_due and not node.schedule.read_due
        node.poll(replace(JOINING, nodes=512), read=False)
    node.now += 1.1
    assert node.schedule.read_due


@pytest.mark.parametrize(("rank", "pause"), [(0, 0.01), (1, 1.0), (2, 2.0), (None, 78.125)])
def test_other_nodes_put_off_a_due_reading_when_a_round_ends(rank: int | None, pause: float) -> None:
    node = PollingNode()
    node.poll(replace(RUNNING, rank=rank, nodes=10_000))
    node.schedule.read_within(LEASE / 6)
    node.now += LEASE / 6
    node.poll(replace(JOINING, rank=rank, nodes=10_000), read=False)
    assert node.schedule.read_due == (rank == 0)
    assert node.schedule.pause == pytest.approx(pause)


def test_a_silent_neighbour_makes_a_node_read_earlier() -> None:
    node = PollingNode()
    node.poll(RUNNING)
    node.poll(replace(RUNNING, urgent=True), read=False)
    node.now += POLL
    assert node.schedule.read_due


def test_long_polls_take_at_most_half_of_the_time() -> None:
    node = PollingNode()
    node.poll(replace(JOINING, rank=0), took=1.5)
    node.schedule.record_notification(newer=False)
    assert node.schedule.pause == pytest.approx(1.5)
    assert not node.schedule.poll_due


def test_a_poll_soon_follows_a_pause_of_the_filesystem() -> None:
    node = PollingNode()
    node.poll(replace(JOINING, rank=0), took=60.0)
    assert node.schedule.pause == pytest.approx(2.0)


@pytest.mark.parametrize(("rank", "pause"), [(0, 0.01), (1, 0.3)], ids=["first leader", "second leader"])
def test_the_first_leader_reads_again_soon_after_a_short_poll(rank: int, pause: float) -> None:
    node = PollingNode()
    node.poll(replace(JOINING, rank=rank), took=0.3)
    node.schedule.record_notification(newer=False)
    assert node.schedule.pause == pytest.approx(pause)


def test_a_newer_version_is_followed_at_once_after_a_long_poll() -> None:
    node = PollingNode()
    node.poll(JOINING, took=3.0)
    node.schedule.record_notification(newer=True)
    assert node.schedule.pause == pytest.approx(0.01)


def test_a_node_that_has_caught_up_polls_as_usual() -> None:
    node = PollingNode()
    assert node.poll(replace(RUNNING, urgent=True, nodes=10_000)) == pytest.approx(POLL)
    node.schedule.record_caught_up()
    assert node.schedule.pause == pytest.approx(78.125)


def test_a_poll_can_be_scheduled_earlier_and_not_later() -> None:
    node = PollingNode()
    node.poll(RUNNING)
    node.schedule.poll_within(3.0)
    node.schedule.poll_within(30.0)
    assert node.schedule.pause == pytest.approx(3.0) and not node.schedule.read_due


def test_a_notified_poll_is_not_a_regular_one() -> None:
    node = PollingNode()
    node.poll(RUNNING)
    node.now += 1.0
    node.schedule.record_notification(newer=True)
    assert node.schedule.poll_due and not node.schedule.regular_poll_due
    node.now += 2 * LEASE
    assert node.schedule.regular_poll_due
