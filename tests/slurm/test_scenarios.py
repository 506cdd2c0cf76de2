"""A run under SLURM ends like an undisturbed one after any fault, never has two groups, and leaves no process or
job."""

from collections.abc import Callable

import pytest

from hpcelastic.storage.leases import read_leases
from tests.cluster import SlurmCluster, presets
from tests.slurm.scenario.cases import CASES, Case
from tests.slurm.scenario.faults import worker_crash
from tests.slurm.scenario.plan import Plan
from tests.slurm.scenario.stage import SHAPES, Setting, Stage
from tests.slurm.scenario.storm import run_storm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

FreshCluster = Callable[..., SlurmCluster]
NODES = 4


PLAYED = [
    pytest.param(case, shape, id=f"{name}-{shape}", marks=[pytest.mark.nightly] if shape == case.nightly else [])
    for name, case in CASES.items()
    for shape in case.shapes
]


@pytest.mark.parametrize(("case", "shape"), PLAYED)
def test_run_survives(case: Case, shape: str, fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(nodes=NODES, extra_conf=case.conf)
    with Stage(cluster, case.setting(shape)) as stage:
        case.play(stage)
        case.end(stage)
        status = stage.run.status()
        assert status.restarts == case.restarts, stage.describe()
        assert case.world - case.lost <= status.world_size <= case.world, stage.describe()
        assert stage.job_states() <= case.ends(shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_two_runs_at_the_same_time_are_independent(shape: str, fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(nodes=NODES, extra_conf=presets.QUICK)
    slurm = {"cpus_per_node": 2, "memory": "1G"}
    settings = [Setting(shape, "2..4", Plan(seed=seed), f"run{seed}", slurm) for seed in (1, 2)]
    with Stage(cluster, settings[0]) as first, Stage(cluster, settings[1]) as second:
        for stage in (first, second):
            stage.until_world(NODES)
        round = second.run.status().round  # more than 1 if a node was late
        worker_crash(first)
        first.verdict()
        assert second.run.status().round == round
        second.verdict()
        second.leaves_nothing()
        assert [stage.run.status().restarts for stage in (first, second)] == [1, 0]


def pending(stage: Stage) -> None:
    stage.until("a job", stage.cluster.jobs)


def starting(stage: Stage) -> None:
    stage.until("the job's start", lambda: "RUNNING" in stage.cluster.jobs().values())


def joining(stage: Stage) -> None:
    stage.until("an agent", lambda: read_leases(stage.paths.leases))


def running(stage: Stage) -> None:
    stage.until_step(3)


def stopping(stage: Stage) -> None:
    stage.until_step(3)
    stage.kill_worker(rank=0)


def requeued(stage: Stage) -> None:
    stage.until_step(3)
    job = stage.job_on(2)
    stage.cluster.run("scontrol", "requeue", job)
    stage.cluster.wait_job(job, "PENDING")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("phase", [pending, starting, joining, running, stopping, requeued], ids=lambda it: it.__name__)
def test_cancel_leaves_nothing_behind(phase: Callable[[Stage], None], shape: str, fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(nodes=NODES, extra_conf=presets.QUICK)
    slurm = {"options": {"exclusive": True, "hold": phase is pending}}
    with Stage(cluster, Setting(shape, slurm=slurm)) as stage:
        phase(stage)
        stage.run.cancel()
        stage.leaves_nothing()
        assert stage.run.status().phase == "closed"
        assert stage.job_states() == {"CANCELLED"}


@pytest.mark.usefixtures("fresh_cluster")  # for its check that clusters can run here
@pytest.mark.parametrize("shape", ["allocation", pytest.param("pool", marks=pytest.mark.nightly)])
def test_run_survives_a_storm(shape: str) -> None:
    """`make storm` runs a longer one."""
    assert run_storm(40.0, seed=1, shape=shape).rounds >= 3
