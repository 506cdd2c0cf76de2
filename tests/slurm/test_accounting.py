"""A cluster with slurmdbd: the final states of jobs that the controller has forgotten."""

import os
import time
from collections.abc import Callable, Iterator

import pytest

from hpcelastic.slurm import scheduler
from tests.cluster import SlurmCluster, presets
from tests.cluster.accounting import accounting, why_no_accounting
from tests.cluster.waiting import wait_until
from tests.filesystems.availability import require
from tests.slurm.scenario.plan import Plan
from tests.slurm.scenario.stage import Setting, Stage

pytestmark = pytest.mark.weekly

_QUIET = 600
"""Seconds after which nobody takes an agent for alive that has renewed no lease."""

_TIMEOUT = 120.0


@pytest.fixture
def accounted(fresh_cluster: Callable[..., SlurmCluster]) -> Iterator[SlurmCluster]:
    """A cluster of two nodes with accounting, whose controller forgets a job seconds after its end."""
    require(why_no_accounting())
    with accounting() as conf:
        yield fresh_cluster(nodes=2, extra_conf=f"{presets.QUICK}\nMinJobAge=2\n{conf}")


def forgotten(cluster: SlurmCluster, job: str) -> None:
    """Wait until the controller has forgotten a job."""
    known = "the controller to forget the job"
    wait_until(known, lambda: cluster.run("squeue", "-h", "--states=all"), lambda jobs: not jobs, _TIMEOUT, str)
    assert scheduler.job_states([job]) == {}


def test_a_run_that_was_cancelled_is_explained_by_the_accounting(
    accounted: SlurmCluster, enter: Callable[[SlurmCluster], SlurmCluster]
) -> None:
    enter(accounted)
    with Stage(accounted, Setting(nodes="2..2", plan=Plan(steps=10_000), slurm={"requeue": False})) as stage:
        stage.until_world(2)
        (job,) = stage.run.status().jobs
        for node in (1, 2):
            accounted.power_off(node)
        accounted.run("scancel", job)
        for node in (1, 2):
            accounted.set_down(node)
        forgotten(accounted, job)
        wait_until("its end", lambda: scheduler.final_states([job]), lambda s: s == {job: ["CANCELLED"]}, _TIMEOUT, str)
        long_ago = time.time() - _QUIET
        os.utime(stage.paths.leases, (long_ago, long_ago))
        found = stage.run.why()
        assert (found.id, found.blame) == ("slurm-cancelled", "user"), found


def test_an_array_has_a_final_state_for_each_element(
    accounted: SlurmCluster, enter: Callable[[SlurmCluster], SlurmCluster]
) -> None:
    enter(accounted)
    job = accounted.submit("exit $((SLURM_ARRAY_TASK_ID * 7))", "--array=0-1", "--no-requeue")
    forgotten(accounted, job)
    states = wait_until(
        "its end", lambda: sorted(scheduler.final_states([job]).get(job, [])), lambda s: "FAILED" in s, _TIMEOUT, str
    )
    assert states == ["COMPLETED", "FAILED"]
