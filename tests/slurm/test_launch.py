"""`elastic_launch` called by one process on each node of a job, on a real cluster."""

import sys
from pathlib import Path

import pytest

from tests.cluster import SlurmCluster

ROOT = Path(__file__).parents[2]
ENDED = 180.0
"""Time limit for the end of a job in seconds. It is long, because the machine may be busy with other tests."""

LAUNCHER = """\
import os, sys, time
from pathlib import Path
from hpcelastic.pytorch.launch import LaunchConfig, elastic_launch

def trains(finish):
    print("round", os.environ["HPCELASTIC_ROUND"], "rank", os.environ["RANK"], flush=True)
    while not Path(finish).exists():
        time.sleep(0.1)
    return os.environ["SLURMD_NODENAME"] + " of " + os.environ["GROUP_WORLD_SIZE"]

config = LaunchConfig(min_nodes=1, max_nodes=2, nproc_per_node=1, rdzv_endpoint=sys.argv[1])
print("returned", elastic_launch(config, trains)(sys.argv[2]), flush=True)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_each_node_gets_the_results_of_its_own_ranks(cluster: SlurmCluster) -> None:
    command = f"srun {sys.executable} {ROOT}/examples/launch.py --nodes 2 --runs {cluster.path}/runs"
    job = cluster.submit(command, "--nodes=2", "--ntasks-per-node=1")
    cluster.wait_job(job, "COMPLETED", timeout=ENDED)
    told = cluster.output(job)
    values = sorted(line.partition(", loss")[0] for line in told.splitlines() if ": y = " in line)
    assert values == [f"rank {rank}: y = 3.000 x + 1.000" for rank in range(4)]
    assert told.count("event: agent SUCCEEDED, 1 restarts") == 2
    assert (cluster.path / "runs" / f"job-{job}" / "results").is_dir()


def test_a_launcher_continues_without_a_node_that_dies(cluster: SlurmCluster) -> None:
    (cluster.path / "launcher.py").write_text(LAUNCHER)
    command = f"srun --no-kill --kill-on-bad-exit=0 {sys.executable} {cluster.path}/launcher.py {cluster.path}/runs"
    job = cluster.submit(f"{command} {cluster.path}/finish", "--nodes=2", "--ntasks-per-node=1", "--no-kill")
    cluster.wait_output(job, "round 1 rank 1", timeout=ENDED)
    cluster.kill_node(2)
    cluster.wait_output(job, "round 2 rank 0", timeout=ENDED)
    (cluster.path / "finish").touch()
    assert "returned {0: 'n1 of 1'}" in cluster.wait_output(job, "returned", timeout=ENDED)
