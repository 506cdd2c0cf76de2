"""Preemption on a real cluster: the run saves a checkpoint if there is time, and continues without a person."""

from collections.abc import Callable

import pytest

from tests.cluster import SlurmCluster, presets
from tests.slurm.scenario.plan import Plan
from tests.slurm.scenario.stage import SHAPES, Setting, Stage
from tests.slurm.test_time_limit import without_scontrol

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

FreshCluster = Callable[..., SlurmCluster]
CONF = presets.PREEMPTION
WARNED = f"{CONF}\n{presets.USER_SIGNAL}"
SELDOM = Plan(save_every=1000)
"""Saves only when it is requested to stop."""

NEVER_ASKS = """
import os, time
open(os.environ["HPCELASTIC_RUN_DIR"] + "/up", "w").close()
while not os.path.exists(os.environ["HPCELASTIC_RUN_DIR"] + "/finish"):
    time.sleep(0.1)
"""
"""A script that never calls should_stop()."""


def take_the_nodes(stage: Stage) -> str:
    """Submit a job of a higher partition that needs all nodes. Return its id."""
    stage.record_fault("preemption")
    return stage.cluster.submit("echo high; sleep 300", "-p", "high", "--exclusive", "-N2")


def give_them_back(stage: Stage, high: str, jobs: list[str]) -> None:
    """Cancel that job once the run's jobs are pending."""
    stage.cluster.wait_output(high, "high")
    for job in jobs:
        stage.cluster.wait_job(job, "PENDING")
    stage.cluster.run("scancel", high)
    for job in jobs:
        stage.cluster.start_now(job)


@pytest.mark.parametrize("conf", [pytest.param(CONF, id="SIGTERM"), pytest.param(WARNED, id="user-signal")])
@pytest.mark.parametrize("shape", SHAPES)
def test_with_grace_no_step_is_lost(shape: str, conf: str, fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(nodes=2, extra_conf=conf)
    with Stage(cluster, Setting(shape, "1..2", SELDOM, slurm={"partition": "graceful"})) as stage:
        stage.until_world(2)
        stage.until_step(3)
        jobs = list(cluster.jobs())
        high = take_the_nodes(stage)
        give_them_back(stage, high, jobs)
        assert stage.verdict().steps_lost == 0
        stage.leaves_nothing()
        assert stage.job_states() == {"COMPLETED"}
        assert [cluster.job(job)["Restarts"] for job in jobs] == ["1"] * len(jobs)
        assert stage.run.status().restarts == 0


def test_only_the_preempted_element_of_a_pool_is_requeued(fresh_cluster: FreshCluster) -> None:
    """One of the elements has the job id of the array."""
    cluster = fresh_cluster(nodes=2, extra_conf=CONF)
    with Stage(cluster, Setting("pool", "1..2", SELDOM, slurm={"partition": "graceful"})) as stage:
        stage.until_world(2)
        stage.until_step(3)  # before its first should_stop(), a worker is ended by SIGTERM
        fields = {job: cluster.job(job) for job in cluster.jobs()}
        taken = next(
            job for job, agents_output in fields.items() if agents_output["JobId"] == agents_output["ArrayJobId"]
        )
        stage.record_fault("preemption of one element")
        high = cluster.submit("echo high; sleep 300", "-p", "high", "--exclusive", "-w", fields[taken]["NodeList"])
        alone = stage.until_world(1)
        give_them_back(stage, high, [taken])
        stage.until_world(2, after_round=alone)
        assert stage.verdict().steps_lost == 0
        assert {job: cluster.job(job)["Restarts"] for job in fields} == {job: str(int(job == taken)) for job in fields}


@pytest.mark.parametrize("conf", [pytest.param(CONF, id="SIGTERM"), pytest.param(WARNED, id="user-signal")])
def test_without_grace_the_run_continues_from_its_last_checkpoint(conf: str, fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(nodes=2, extra_conf=conf)
    with Stage(cluster, Setting(nodes="2", slurm={"partition": "low"})) as stage:
        stage.until_step(6)
        jobs = list(cluster.jobs())
        give_them_back(stage, take_the_nodes(stage), jobs)
        stage.verdict()
        stage.leaves_nothing()
        assert stage.job_states() == {"COMPLETED"}


def test_a_job_that_must_not_be_requeued_reports_how_to_continue_its_run(fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(nodes=2, extra_conf=CONF)
    with Stage(cluster, Setting(nodes="2", slurm={"partition": "graceful", "requeue": False})) as stage:
        stage.until_step(3)
        (job,) = cluster.jobs()
        take_the_nodes(stage)
        stage.until("the job's end", lambda: job not in cluster.jobs())
        assert cluster.job(job)["Restarts"] == "0"
        assert f"job {job} is not started again" in agents_output(stage)
        assert "--resume" in agents_output(stage)
        assert stage.run.status().phase == "joining"


def test_a_script_that_does_not_poll_is_stopped_and_continues(fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(nodes=2, extra_conf=CONF)
    script = cluster.path / "never_asks.py"
    script.write_text(NEVER_ASKS)
    with Stage(cluster, Setting(nodes="2", script=script, slurm={"partition": "graceful"})) as stage:
        stage.until("workers", (stage.run.directory / "up").exists)
        jobs = list(cluster.jobs())
        give_them_back(stage, take_the_nodes(stage), jobs)
        (stage.run.directory / "finish").touch()
        assert stage.run.wait(timeout=60).phase == "succeeded"
        stage.leaves_nothing()
        assert stage.job_states() == {"COMPLETED"}


def test_the_first_agent_may_die_during_the_preemption(fresh_cluster: FreshCluster) -> None:
    """The agent of the first node is killed as soon as the warning has come. The other one requeues the job."""
    cluster = fresh_cluster(nodes=2, extra_conf=CONF)
    with Stage(cluster, Setting(nodes="1..2", slurm={"partition": "graceful"})) as stage:
        stage.until_world(2)
        jobs = list(cluster.jobs())
        high = take_the_nodes(stage)
        stage.until("the warning", lambda: cluster.job(jobs[0])["PreemptTime"] != "None")
        stage.kill_agent(1)
        give_them_back(stage, high, jobs)
        stage.verdict()
        stage.leaves_nothing()
        assert cluster.job(jobs[0])["Restarts"] == "1"


def agents_output(stage: Stage) -> str:
    """Return the output of the agents."""
    return "\n".join(path.read_text() for path in stage.paths.slurm.glob("*_log.*"))


def test_agents_without_slurm_leave_the_requeue_to_the_batch_script(fresh_cluster: FreshCluster) -> None:
    """Hide SLURM's commands, as in a container."""
    cluster = fresh_cluster(nodes=2, extra_conf=CONF)
    setup = without_scontrol(cluster)
    with Stage(cluster, Setting(nodes="2", slurm={"partition": "graceful", "setup": setup})) as stage:
        stage.until_step(6)
        jobs = list(cluster.jobs())
        give_them_back(stage, take_the_nodes(stage), jobs)
        stage.verdict()
        stage.leaves_nothing()
        assert cluster.job(jobs[0])["Restarts"] == "1"
        assert "left to the batch script" in agents_output(stage)
