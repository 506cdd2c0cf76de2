"""Runs on a real Grid Engine cluster, by the batch script of the examples."""

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hpcelastic.api.run import Run
from hpcelastic.errors import ConfigError, StoreError
from tests.cluster.grid_engine import ENVIRONMENT, GridEngineCluster, grid_engine, why_no_grid_engine
from tests.cluster.waiting import wait_until
from tests.filesystems.availability import require

pytestmark = pytest.mark.weekly

TIMEOUT = 120.0
SCRIPT = Path(__file__).parents[2] / "examples" / "gridengine" / "elastic.sh"
TRAIN = """\
import os, pathlib, time
from hpcelastic.training import should_stop

step = pathlib.Path("step")
done = int(step.read_text()) if step.exists() else 0
if os.environ["RANK"] == "0":
    print(f"round {os.environ['HPCELASTIC_ROUND']} of {os.environ['WORLD_SIZE']} from step {done}", flush=True)
while not pathlib.Path("finish").exists():
    if should_stop():
        break
    time.sleep(0.05)
    if os.environ["RANK"] == "0":
        done += 1
        step.with_suffix(".draft").write_text(str(done))
        step.with_suffix(".draft").rename(step)
"""


@pytest.fixture
def cluster() -> Iterator[GridEngineCluster]:
    """A cluster of three nodes, with the script of the examples and a training."""
    require(why_no_grid_engine())
    with grid_engine(3) as started:
        shutil.copy(SCRIPT, started.work)
        (started.work / "train.py").write_text(TRAIN)
        yield started


def submit(cluster: GridEngineCluster, *options: str) -> str:
    variables = f"PYTHON={sys.executable},PATH"
    return cluster.submit("-pe", ENVIRONMENT, "3", "-v", variables, *options, "elastic.sh").partition(".")[0]


def until(cluster: GridEngineCluster, job: str, what: str, holds: Callable[[Run], object]) -> Run:
    """Wait until something holds for the run of the job."""

    def look() -> Run | None:
        with suppress(ConfigError, StoreError):  # the run does not exist yet
            run = Run(cluster.work / "runs" / f"job-{job}")
            return run if holds(run) else None
        return None

    found = wait_until(what, look, bool, TIMEOUT, cluster.logs)
    assert found is not None
    return found


def first_steps(cluster: GridEngineCluster) -> dict[int, int]:
    """Return the step from which each round of three workers has begun."""
    text = "\n".join(path.read_text() for path in cluster.work.glob("elastic.o*"))
    return {int(round): int(step) for round, step in re.findall(r"round (\d+) of 3 from step (\d+)", text)}


def test_a_run_continues_without_a_lost_node(cluster: GridEngineCluster) -> None:
    job = submit(cluster)
    run = until(cluster, job, "three nodes", lambda run: run.status().world_size == 3)
    assert sorted(node.name for node in run.status().nodes) == ["n1", "n2", "n3"]
    master = cluster.run("qstat -u root -g t | awk '/MASTER/ {print $8}'").strip().removeprefix("all.q@")
    lost = next(number for number in (1, 2, 3) if f"n{number}" != master)
    cluster.fail_node(lost)
    until(cluster, job, "two nodes", lambda run: run.status().phase == "running" and run.status().world_size == 2)
    (cluster.work / "finish").touch()
    until(cluster, job, "success", lambda run: run.status().phase == "succeeded")


def test_a_run_continues_in_the_next_task_before_the_time_limit(cluster: GridEngineCluster) -> None:
    job = submit(cluster, "-t", "1-3", "-l", "h_rt=0:2:0", "-v", "LIMIT=110,WARNING=50")
    until(cluster, job, "a second task", lambda run: len(first_steps(cluster)) > 1)
    (cluster.work / "finish").touch()
    run = until(cluster, job, "success", lambda run: run.status().phase == "succeeded")
    steps = first_steps(cluster)
    assert steps[1] == 0 < steps[2]
    assert f"Grid Engine's job {job}.1 is near its time limit" in run.why(1).cause
    wait_until("the end of all tasks", lambda: cluster.queued(job), lambda queued: not queued, TIMEOUT, cluster.logs)
