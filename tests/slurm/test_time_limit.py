"""Time limits, and users' commands on jobs, on a real cluster. SLURM checks limits every 30 s."""

from collections.abc import Callable

import pytest

from hpcelastic.protocol.codec import encode
from hpcelastic.slurm.requeue import Requeue
from hpcelastic.storage import files
from tests.cluster import SlurmCluster, presets
from tests.slurm.scenario.plan import Plan
from tests.slurm.scenario.stage import Setting, Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

FreshCluster = Callable[..., SlurmCluster]
PLAN = Plan(save_every=1000)
"""Saves only when it is requested to stop."""

SLURM = {"time": "60", "warning": 60}

REFUSES = """#!/bin/sh
# Within a step there is no SLURM, as in a container; the batch script has it.
[ -n "$SLURM_STEP_NUM_TASKS" ] && echo "not here" >&2 && exit 127
exec {scontrol} "$@"
"""


@pytest.fixture
def cluster(fresh_cluster: FreshCluster) -> SlurmCluster:
    return fresh_cluster(nodes=2, extra_conf=presets.QUICK)


def setting(goes_on: bool = True, **slurm: object) -> Setting:
    return Setting(nodes="1..2", plan=PLAN, slurm={**SLURM, **slurm}, total_time="1-0" if goes_on else None)


def limited(stage: Stage) -> str:
    """Return the run's job. SLURM will soon announce the end of its time limit."""
    (job,) = stage.cluster.jobs()
    stage.cluster.limit(job, 65)
    return job


def at_the_gate(stage: Stage) -> str:
    """Return the run's job once all workers wait at the gate."""
    stage.until_world(2)
    stage.until_step(PLAN.gate)
    return next(iter(stage.cluster.jobs()))


def check_success(stage: Stage, job: str, restarts: int = 1) -> None:
    """Check that the run has lost no step, and how often its job was requeued."""
    assert stage.verdict().steps_lost == 0
    stage.leaves_nothing()
    assert stage.job_states() == {"COMPLETED"}
    assert stage.cluster.job(job)["Restarts"] == str(restarts)


def agents_output(stage: Stage) -> str:
    """Return the output of the agents."""
    return "\n".join(path.read_text() for path in stage.paths.slurm.glob("*_log.*"))


def without_scontrol(cluster: SlurmCluster) -> list[str]:
    """Return lines for the batch script of a job whose agents cannot call SLURM."""
    program = cluster.path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(REFUSES.format(scontrol=cluster.run("which", "scontrol")))
    program.chmod(0o755)
    return [f"export PATH={program.parent}:$PATH"]


@pytest.mark.parametrize("reachable", [True, False], ids=["SLURM-answers", "no-scontrol"])
def test_a_run_continues_beyond_its_time_limit_until_it_is_done(reachable: bool, cluster: SlurmCluster) -> None:
    setup = [] if reachable else without_scontrol(cluster)
    with Stage(cluster, setting(setup=setup)) as stage:
        stage.until_step(3)
        job = limited(stage)
        stage.cluster.start_now(job)
        check_success(stage, job)
        output = agents_output(stage)  # a second agent's request is refused if SLURM is slow to end the job
        refused = output.count("left to the batch script")
        assert (output.count("requeueing job") > refused) is reachable, output
        assert not list(stage.paths.slurm.glob("requeue-*")), "no request is left for the next incarnation"


def test_a_limit_without_more_time_ends_the_job_with_a_checkpoint(cluster: SlurmCluster) -> None:
    with Stage(cluster, setting(goes_on=False)) as stage:
        stage.until_step(3)
        job = limited(stage)
        stage.leaves_nothing()
        assert stage.cluster.job(job)["Restarts"] == "0"
        assert any(note.kind == "saved" for note in stage.notes())
        assert f"job {job} is not started again" in agents_output(stage)
        assert stage.run.status().phase == "joining"


@pytest.mark.parametrize(
    ("slurm", "past", "reason"),
    [
        pytest.param({"max_requeues": 0}, None, "the job was requeued 0 times", id="max_requeues"),
        pytest.param({}, Requeue("", -1, "", 86_400.0), "run.total_time is 86400 s", id="total_time"),
        pytest.param({}, Requeue("", -1, "", 60.0, progress=PLAN.gate, by_limit=True), "no progress", id="no progress"),
    ],
)
def test_a_run_that_must_not_continue_is_closed_with_the_reason(
    slurm: dict[str, object], past: Requeue | None, reason: str, cluster: SlurmCluster
) -> None:
    with Stage(cluster, setting(**slurm)) as stage:
        job = at_the_gate(stage)
        if past is not None:
            files.make_directory(stage.paths.requeues)
            record = {**encode(past), "job": job}
            files.publish(stage.paths.requeue(job, past.restart), files.to_json(record))
        limited(stage)
        stage.leaves_nothing()
        status = stage.run.status()
        assert status.phase == "closed"
        assert reason in status.reason
        assert stage.cluster.job(job)["Restarts"] == "0"


def test_a_job_whose_batch_script_was_lost_is_requeued_too(cluster: SlurmCluster) -> None:
    with Stage(cluster, setting()) as stage:
        job = at_the_gate(stage)
        limited(stage)  # SLURM refuses the change afterwards
        cluster.fail_node(Stage.number(cluster.job(job)["BatchHost"]))
        lost = stage.until_world(1)
        stage.cluster.start_now(job)
        stage.until_world(1, after_round=lost)
        stage.verdict()
        stage.leaves_nothing()
        assert cluster.job(job)["Restarts"] == "1"


def test_a_users_signal_causes_one_checkpoint(cluster: SlurmCluster) -> None:
    with Stage(cluster, setting()) as stage:
        job, first = at_the_gate(stage), stage.run.status().round
        cluster.run("scancel", "--signal=USR2", job)
        stage.until_world(2, after_round=first)
        check_success(stage, job, restarts=0)
        assert stage.run.status().round == first + 1


def test_a_cancelled_job_ends_at_once_and_is_not_requeued(cluster: SlurmCluster) -> None:
    with Stage(cluster, setting()) as stage:
        job = at_the_gate(stage)
        cluster.run("scancel", job)
        stage.until("the job's end", lambda: cluster.job_state(job) == "CANCELLED")
        stage.leaves_nothing()
        assert not list(stage.paths.slurm.glob("requeue*"))
