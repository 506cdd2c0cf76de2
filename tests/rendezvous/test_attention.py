from dataclasses import replace

import pytest

from hpcelastic.protocol.settings import RendezvousSettings
from hpcelastic.protocol.state import Phase
from hpcelastic.rendezvous.attention import Attention, Moment

LEASE, POLL = 12.0, 0.5
RUNNING = Moment(Phase.RUNNING, rank=None, nodes=8, calm=True, urgent=False)
JOINING = replace(RUNNING, phase=Phase.JOINING)


class Watch:
    """A node's attention, on a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.attention = Attention(RendezvousSettings(lease=LEASE, margin=1, poll=POLL), lambda: self.now)

    def look(self, moment: Moment, took: float = 0.0, read: bool = True) -> float:
        """Look, and say how long until the next look."""
        self.now += took
        self.attention.looked(self.now - took, moment, read)
        return self.attention.pause


def test_a_node_that_has_never_looked_looks() -> None:
    assert Watch().attention.due


@pytest.mark.parametrize(
    ("moment", "pause"),
    [
        pytest.param(RUNNING, 2 * LEASE, id="all is quiet"),
        pytest.param(replace(RUNNING, rank=2), LEASE / 6, id="a leader watches the leases"),
        pytest.param(replace(RUNNING, calm=False), POLL, id="the network can't be used"),
        pytest.param(replace(RUNNING, calm=False, nodes=1280), 10.0, id="many nodes without a network"),
        pytest.param(replace(RUNNING, urgent=True, nodes=1280), POLL, id="a neighbour is silent"),
        pytest.param(JOINING, POLL, id="a round forms"),
        pytest.param(replace(JOINING, nodes=1280), 10.0, id="a round of many forms"),
        pytest.param(replace(JOINING, nodes=1280, rank=1), POLL, id="a round of many forms, and this is a leader"),
        pytest.param(replace(RUNNING, phase=Phase.SUCCEEDED), POLL, id="the run is over"),
    ],
)
def test_how_often_a_node_looks_by_itself(moment: Moment, pause: float) -> None:
    assert Watch().look(moment) == pytest.approx(pause)


def test_all_nodes_together_look_so_often_and_no_more() -> None:
    for nodes in (1, 64, 128, 1024, 10_000):
        pause = Watch().look(replace(JOINING, nodes=nodes))
        assert nodes / pause <= 128 + 1e-6 and pause >= POLL


def test_a_newer_version_is_looked_at_at_once_by_all() -> None:
    for rank in (None, 0, 2):
        watch = Watch()
        watch.look(replace(RUNNING, rank=rank, nodes=1024))
        watch.attention.told(newer=True)
        assert watch.attention.pause == pytest.approx(0.01)
        watch.now += 0.01
        assert watch.attention.due


@pytest.mark.parametrize(("rank", "pause"), [(0, 0.01), (1, 0.2), (2, 0.4)])
def test_a_word_is_looked_at_by_one_leader_after_the_other(rank: int, pause: float) -> None:
    watch = Watch()
    watch.look(replace(JOINING, rank=rank))
    watch.attention.told(newer=False)
    assert watch.attention.pause == pytest.approx(pause)


def test_who_is_told_again_does_not_put_off_its_look() -> None:
    watch = Watch()
    watch.look(replace(JOINING, rank=2))
    watch.attention.told(newer=False)
    watch.now += 0.3
    watch.attention.told(newer=False)
    assert watch.attention.pause == pytest.approx(0.1)


def test_a_word_makes_no_other_look_more_often_than_all_together_may() -> None:
    watch = Watch()
    watch.look(replace(RUNNING, nodes=512))
    watch.attention.told(newer=False)
    assert watch.attention.pause == pytest.approx(16.0)
    watch.now += 17
    watch.attention.told(newer=False)
    assert watch.attention.due and watch.attention.reading


def test_all_nodes_together_read_so_many_leases_and_no_more() -> None:
    for nodes in (1, 64, 128, 1024, 10_000):
        watch = Watch()
        watch.look(replace(JOINING, nodes=nodes))
        watch.now += POLL * 0.99
        assert not watch.attention.reading
        watch.now = 100.0 + max(POLL, nodes**2 / 16384) + 0.01
        assert watch.attention.reading


def test_looks_without_the_leases_do_not_put_off_their_reading() -> None:
    watch = Watch()
    watch.look(replace(JOINING, nodes=512))
    for _ in range(15):
        watch.now += 1.0
        watch.attention.told(newer=True)
        assert watch.attention.due and not watch.attention.reading
        watch.look(replace(JOINING, nodes=512), read=False)
    watch.now += 1.1
    assert watch.attention.reading


def test_a_silent_neighbour_makes_a_node_read_sooner() -> None:
    watch = Watch()
    watch.look(RUNNING)
    watch.look(replace(RUNNING, urgent=True), read=False)
    watch.now += POLL
    assert watch.attention.reading


def test_looks_that_take_long_take_half_of_the_time_at_most() -> None:
    watch = Watch()
    watch.look(JOINING, took=3.0)
    watch.attention.told(newer=True)
    assert watch.attention.pause == pytest.approx(3.0)
    assert not watch.attention.due
