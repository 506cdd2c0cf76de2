"""The model of runs on many nodes."""

from collections.abc import Iterator
from random import Random

import pytest

from benchmarks.model.__main__ import events
from benchmarks.model.cluster import Cluster
from benchmarks.model.here import Times, calibrated, modelled, row
from benchmarks.model.parameters import Model, Processor, Storage
from benchmarks.model.resources import Queue
from tests.simulation.clock import Clock


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster(100, Model(), least=50)
    yield made
    made.close()


def test_requests_wait_for_each_other() -> None:
    one, two = Queue(Clock(Random(0))), Queue(Clock(Random(0)), servers=2)
    assert [one.take(1.0), one.take(1.0), one.take(1.0, delay=5.0)] == [1.0, 2.0, 6.0]
    assert [two.take(1.0), two.take(1.0), two.take(1.0)] == [1.0, 1.0, 2.0]
    assert one.busy == two.busy == 3.0


def test_the_time_that_servers_have_worked_is_without_what_waits() -> None:
    clock = Clock(Random(0))
    queue = Queue(clock, servers=2)
    for _ in range(3):
        queue.take(1.0)
    found = [queue.done]
    for now in (0.5, 1.5, 5.0):
        clock.advance(now)
        found.append(queue.done)
    assert found == [0.0, 1.0, 2.5, 3.0]


def test_the_processor_time_of_an_event_fits_into_its_duration() -> None:
    cluster = Cluster(30, Model(processor=Processor(turn=0.02, shared=2)), least=15)
    cluster.start()
    formed = cluster.until_round(1, 30)
    cluster.lose([15])
    followed = cluster.until_round(2, 29)
    cluster.close()
    for event in (formed, followed):
        assert 0 < event.processor <= 2 * event.seconds


def test_a_round_forms_and_continues_without_a_lost_node(cluster: Cluster) -> None:
    cluster.start()
    formed = cluster.until_round(1, 100)
    cluster.lose([50])
    followed = cluster.until_round(2, 99)
    assert not cluster.failed and cluster.round == 2
    assert 0 < followed.seconds < 20 and 0 < formed.seconds < 20


def test_followers_neither_list_the_leases_nor_read_the_next_versions(cluster: Cluster) -> None:
    cluster.start()
    cluster.until_round(1, 100)
    cluster.idle(20.0)
    before = cluster.nodes[77].mount.requests
    cluster.lose([50])
    cluster.until_round(2, 99)
    renewals = 20.0 / 3  # of a lease of 2.5 s, at most, and the two publications
    assert cluster.nodes[77].mount.requests - before <= 2 + renewals


def test_after_a_requeue_only_the_first_nodes_list_the_leases(cluster: Cluster) -> None:
    cluster.start()
    cluster.until_round(1, 100)
    cluster.requeue(10.0)
    cluster.until_round(2, 100)
    of_first, of_others = cluster.nodes[0].mount.requests, [node.mount.requests for node in cluster.nodes[3:]]
    assert max(of_others) < of_first and not cluster.failed


def test_a_slower_metadata_server_makes_a_round_later() -> None:
    seconds = []
    for operations in (20_000.0, 200.0):
        cluster = Cluster(30, Model(Storage(operations=operations)))
        cluster.start()
        seconds.append(cluster.until_round(1, 30).seconds)
        cluster.close()
    assert seconds[1] > 2 * seconds[0]


def test_a_node_that_is_drained_leaves_and_the_others_continue(cluster: Cluster) -> None:
    cluster.start()
    cluster.until_round(1, 100)
    cluster.drain(33)
    cluster.until_round(2, 99)
    assert 2 not in cluster.nodes[33].started and not cluster.failed
    cluster.idle(5.0)
    assert cluster.nodes[33].process.gone and cluster.round == 2


def test_a_pause_of_the_filesystem_delays_all_requests(cluster: Cluster) -> None:
    cluster.start()
    cluster.until_round(1, 100)
    cluster.pause_storage(1.0)
    cluster.lose([50])
    assert cluster.until_round(2, 99).seconds > 1.0


def test_all_events_are_measured() -> None:
    found = dict(events(20))
    assert list(found) == ["cold", "idle 30 s", "one lost", "drained", "1 % lost", "half lost", "requeued"]
    assert all(effort.requests > 0 for effort in found.values())


def test_processors_are_calibrated_by_the_processor_time_of_real_agents() -> None:
    real = Processor(start=0.05, turn=0.02, shared=2)
    found = calibrated(modelled(12, real), 12)
    assert 0.025 < found.start < 0.1 and 0.01 < found.turn < 0.04


def test_the_model_and_real_agents_are_shown_beside_each_other() -> None:
    line = row(64, "cold", Times(2.0, 0.010), Times(1.0, 0.008))
    assert "real   2.00 s, modelled   1.00 s, ratio 0.50" in line and "real  10.0 ms, modelled   8.0 ms" in line
