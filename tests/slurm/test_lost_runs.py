"""A run all of whose nodes are lost: what its directory, and SLURM, tell about it afterwards."""

import os
import time
from collections.abc import Callable

from hpcelastic.api.why import Why
from tests.cluster import SlurmCluster, presets
from tests.slurm.scenario.plan import Plan
from tests.slurm.scenario.stage import Setting, Stage

_QUIET = 600
"""Seconds after which nobody takes an agent for alive that has renewed no lease."""


def check(found: Why) -> None:
    assert (found.id, found.blame, found.certainty) == ("slurm-node-failure", "node", "certain"), found


def test_the_end_of_a_job_whose_nodes_are_all_lost_is_explained(fresh_cluster: Callable[..., SlurmCluster]) -> None:
    cluster = fresh_cluster(nodes=2, extra_conf=presets.QUICK)
    with Stage(cluster, Setting(nodes="2..2", plan=Plan(steps=10_000), slurm={"requeue": False})) as stage:
        stage.until_world(2)
        (job,) = stage.run.status().jobs
        for node in (1, 2):
            cluster.power_off(node)
        assert stage.run.why().id == "runs", "an agent may be alive"
        for node in (1, 2):
            cluster.set_down(node)
        cluster.wait_job(job, "NODE_FAIL")
        long_ago = time.time() - _QUIET
        os.utime(stage.paths.leases, (long_ago, long_ago))
        check(stage.run.why())
        cluster.stop_controller()
        check(stage.run.why())  # SLURM's answer is in the directory
        figures = stage.run.goodput()
        assert figures.abandoned and not figures.final
        cluster.start_controller()
