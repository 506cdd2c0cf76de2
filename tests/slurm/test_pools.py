"""Pools and spares on a real cluster: nodes that join, leave and return individually."""

import json
import re
from collections.abc import Callable

import pytest

import hpcelastic
from hpcelastic.api.run import Run
from tests.cluster import SlurmCluster
from tests.slurm.test_runs import ENDED, command, start, trained, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LONG = ["--epochs", "1000", "--step-time", "0.05", "--checkpoint-every", "10"]
ALONE = {"exclusive": True}
"""Options that give each element a node of its own."""


def pool(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch, **more: object) -> Run:
    """Settings of three elements, of which two are enough."""
    times = {"rendezvous__last_call": 3, "rendezvous__lease": 4, "rendezvous__margin": 1, "rendezvous__poll": 0.2}
    given = {"nodes": "2..3", "slurm__shape": "pool", "slurm__options": ALONE, **times, **more}
    return start(cluster, monkeypatch, **given)


def world_sizes(run: Run) -> set[int]:
    """Return the number of ranks of each round that has trained."""
    return {int(found[1]) for line in run.logs() if (found := re.search(r"round \d+, (\d+) ranks?: epoch", line))}


def grown(run: Run, ranks: int) -> Callable[[], bool]:
    """Return whether a round with ``world`` ranks trains."""
    return lambda: run.status().world_size == ranks and bool(trained(run, run.status().round))


def elements(cluster: SlurmCluster, run: Run) -> dict[str, str]:
    """Return the state of each element of the run's array."""
    lines = cluster.run("squeue", "--noheader", "--array", "--states=all", "--format=%i %T").splitlines()
    ours = (line.split() for line in lines if line.startswith(f"{run.status().jobs[0]}_"))
    return {job.partition("_")[2]: state for job, state in ours}


def gone(cluster: SlurmCluster) -> bool:
    """Return whether every process on the nodes belongs to SLURM."""
    running = [number for number in range(1, len(cluster.nodes) + 1) if cluster.node_running(number)]
    return not any(cluster.user_pids(number) for number in running)


def test_a_pool_trains_and_all_its_elements_complete(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pool(cluster, monkeypatch)
    assert run.wait(timeout=ENDED).phase == "succeeded"
    assert max(world_sizes(run)) == 3
    assert json.loads((run.directory / "result.json").read_text())["test_accuracy"] > 0.9
    until("the end of the elements", lambda: set(elements(cluster, run).values()) == {"COMPLETED"}, run)
    assert run.status().jobs == ("1",)
    assert json.loads((run.directory / "slurm" / "jobs.jsonl").read_text())["elements"] == 3


def test_a_lost_element_is_requeued_and_rejoins(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pool(cluster, monkeypatch, entrypoint__args=LONG)
    until("training on 3 nodes", grown(run, 3), run)
    lost = cluster.job("1_1")
    node = int(lost["NodeList"].removeprefix("n"))
    cluster.fail_node(node)
    until("training on 2 nodes", grown(run, 2), run)
    until("training on 3 nodes again", grown(run, 3), run)
    again = cluster.job("1_1")
    assert (again["Restarts"], again["NodeList"] != lost["NodeList"]) == ("1", True)
    assert run.status().restarts == 0
    assert "1 [3 elements: 3 RUNNING]" in command(cluster, "status", str(run.directory))
    assert "cancelled by" in command(cluster, "cancel", str(run.directory))
    until("the end of the elements", lambda: "RUNNING" not in elements(cluster, run).values(), run)
    until("no process left", lambda: gone(cluster), run)


def test_an_element_requeued_on_its_node_keeps_its_rank(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pool(cluster, monkeypatch, entrypoint__args=LONG, slurm__options={**ALONE, "nodelist": "n1"}, nodes="1..1")
    until("training", grown(run, 1), run)
    before = run.status().nodes
    cluster.run("scontrol", "requeue", "1_0")
    cluster.start_now("1_0")
    until("training again", lambda: run.status().round > 1 and grown(run, 1)(), run)
    assert [(node.name, node.ranks) for node in run.status().nodes] == [(node.name, node.ranks) for node in before]
    run.cancel()
    until("no process left", lambda: gone(cluster), run)


def test_elements_may_share_a_node(fresh_cluster: Callable[..., SlurmCluster], monkeypatch: pytest.MonkeyPatch) -> None:
    run = pool(fresh_cluster(nodes=1), monkeypatch, slurm__options={})
    assert run.wait(timeout=ENDED).phase == "succeeded"
    assert max(world_sizes(run)) == 3


def test_a_pool_grows_when_more_nodes_are_free(
    fresh_cluster: Callable[..., SlurmCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fresh_cluster(nodes=3)
    other = cluster.submit("sleep 1000", "--exclusive", "--nodelist=n3")
    cluster.wait_job(other, "RUNNING")
    run = pool(cluster, monkeypatch, entrypoint__args=LONG)
    until("training on 2 nodes", grown(run, 2), run)
    assert "[3 elements: 2 RUNNING, 1 PENDING]" in command(cluster, "status", str(run.directory))
    cluster.run("scancel", other)
    until("training on 3 nodes", grown(run, 3), run)
    run.cancel()
    until("no process left", lambda: gone(cluster), run)


def test_an_element_that_starts_after_the_end_completes(
    fresh_cluster: Callable[..., SlurmCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third element gets no node before the run has ended on the other two."""
    run = pool(cluster := fresh_cluster(nodes=2), monkeypatch)
    assert run.wait(timeout=ENDED).phase == "succeeded"
    until("the end of the elements", lambda: set(elements(cluster, run).values()) == {"COMPLETED"}, run)
    assert (run.status().round, run.status().phase) == (1, "succeeded")


def test_cancel_ends_pending_elements_too(
    fresh_cluster: Callable[..., SlurmCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pool(cluster := fresh_cluster(nodes=2), monkeypatch, entrypoint__args=LONG)
    until("training on 2 nodes", grown(run, 2), run)
    with pytest.raises(hpcelastic.ConfigError, match=r"SLURM job 1 \(3 elements: 2 RUNNING, 1 PENDING\) belongs to it"):
        start(cluster, monkeypatch, resume=True)
    run.cancel()
    until("the end of the elements", lambda: set(elements(cluster, run).values()) == {"CANCELLED"}, run)
    until("no process left", lambda: gone(cluster), run)


def test_a_spare_replaces_a_lost_node_at_once(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run waits for no more nodes, because it has seen all nodes of the job. The last call exceeds the test's
    time."""
    run = start(
        cluster,
        monkeypatch,
        nodes={"min": 3, "max": 3, "spares": 1},
        rendezvous__last_call=1000,
        rendezvous__lease=4,
        rendezvous__margin=1,
        rendezvous__poll=0.2,
    )
    until("training", lambda: trained(run, 1), run)
    members = {node.name: node.ranks for node in run.status().nodes}
    spare = next(name for name, ranks in members.items() if not ranks)
    assert len(members) == 4
    lost = next(name for name, ranks in members.items() if ranks == "1")
    cluster.fail_node(int(lost.removeprefix("n")))
    until("the next round", lambda: trained(run, 2), run)
    status = run.status()
    assert (status.world_size, status.restarts) == (3, 0)
    assert {node.name for node in status.nodes if node.ranks} == set(members) - {lost} >= {spare}
    assert run.wait(timeout=ENDED).phase == "succeeded"
