"""A run whose state stays in memory, on a SLURM cluster."""

from collections.abc import Callable

from tests.cluster import SlurmCluster, presets
from tests.slurm.scenario.plan import Plan
from tests.slurm.scenario.stage import ELASTIC, Setting, Stage

SELDOM = Plan(steps=300, save_every=300)
"""A run that saves no state before its end."""


def test_no_step_is_lost_with_a_worker_or_a_node(fresh_cluster: Callable[..., SlurmCluster]) -> None:
    cluster = fresh_cluster(nodes=3, extra_conf=presets.QUICK)
    with Stage(cluster, Setting(nodes="1..3", plan=SELDOM, script=ELASTIC)) as stage:
        round = stage.until_world(3)
        others = {(note.node, note.pid) for note in stage.newest() if note.rank != 1}  # each host numbers its own
        stage.kill_worker(rank=1)
        round = stage.until_world(3, after_round=round)  # perhaps after a round of two
        stage.until("a step of each rank", lambda: len({note.rank for note in stage.newest()}) == 3)
        assert others < {(note.node, note.pid) for note in stage.newest()}
        cluster.kill_node(stage.node_of(rank=2))
        stage.until_world(2, after_round=round)
        assert stage.verdict().steps_lost <= 2  # a step that not all ranks had done
        stage.leaves_nothing()
