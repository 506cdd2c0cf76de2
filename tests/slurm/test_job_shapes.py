"""Unusual jobs: a heterogeneous job with one run, and one allocation with two runs."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import StoreError
from hpcelastic.protocol.state import Phase, State
from hpcelastic.rendezvous.run import read_state
from hpcelastic.storage.paths import RunPaths
from tests.cluster import SlurmCluster

pytestmark = pytest.mark.slow

TIMEOUT = 120.0
WORKER = """\
import pathlib, time
while not pathlib.Path("finish").exists():
    time.sleep(0.1)
"""
STEP = "srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0"
AGENT = (
    f"{sys.executable} -m hpcelastic agent --rdzv-endpoint ./runs --preload '' --nnodes 1:4 --rdzv-conf last_call=60"
)


@pytest.fixture
def work(cluster: SlurmCluster) -> Path:
    directory = cluster.path / "work"
    directory.mkdir()
    (directory / "worker.py").write_text(WORKER)
    return directory


def until_round(cluster: SlurmCluster, job: str, run: Path, holds: Callable[[State], bool]) -> State:
    """Return the first running or final state for which ``holds`` is true."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        with suppress(StoreError):  # the run does not exist yet
            state = read_state(FileBackend(RunPaths(run)))
            if holds(state):
                return state
        assert time.monotonic() < deadline, cluster.output(job)
        time.sleep(0.1)


def names(state: State) -> set[str]:
    return {p.name for p in state.participants}


def succeeded(state: State) -> bool:
    return state.phase is Phase.SUCCEEDED


def test_a_heterogeneous_job_has_one_run(cluster: SlurmCluster, work: Path) -> None:
    first = ["#SBATCH --nodes=1 --ntasks-per-node=1", f"#SBATCH --chdir={work}"]
    second = ["#SBATCH hetjob", "#SBATCH --nodes=2 --ntasks-per-node=1"]
    steps = [f"{STEP} --het-group={part} {AGENT} --rdzv-id both worker.py &" for part in range(2)]
    job = cluster.submit("\n".join([*first, *second, *steps, "wait"]))
    until_round(cluster, job, work / "runs" / "both", lambda state: len(state.participants) == 3)
    (work / "finish").touch()
    until_round(cluster, job, work / "runs" / "both", succeeded)
    cluster.wait_job(job, "COMPLETED")


@pytest.mark.parametrize("apart", [True, False], ids=["on different nodes", "on the same nodes"])
def test_one_allocation_has_two_runs(apart: bool, cluster: SlurmCluster, work: Path) -> None:
    step = f"{STEP} --overlap --nodes=2 --ntasks=2"
    places = ("a", "n1,n2"), ("b", "n3,n4" if apart else "n1,n2")
    steps = [f"{step} --nodelist={nodes} {AGENT} --rdzv-id {name} worker.py &" for name, nodes in places]
    job = cluster.submit("\n".join([*steps, "wait"]), "--nodes=4", "--ntasks-per-node=1", f"--chdir={work}")
    found = [
        until_round(cluster, job, work / "runs" / name, lambda state: len(state.participants) == 2) for name in "ab"
    ]
    assert (names(found[0]) == names(found[1])) is not apart
    (work / "finish").touch()
    for name in "ab":
        until_round(cluster, job, work / "runs" / name, succeeded)
    cluster.wait_job(job, "COMPLETED")
