"""Backends with a server, on a real cluster."""

import re

import pytest

from tests.slurm.test_templates import ENDED, Desk, desk

__all__ = ["desk"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

WAITING = """\
import os, pathlib, time
names = ("HPCELASTIC_ROUND", "RANK", "SLURM_NODEID", "WORLD_SIZE")
print("round {} rank {} node {} of {}".format(*(os.environ[name] for name in names)), "pid", os.getpid(), flush=True)
while not pathlib.Path("finish").exists():
    if pathlib.Path("fail").exists() and os.environ["RANK"] == "1" and os.environ["HPCELASTIC_ROUND"] == "1":
        raise ValueError("told to fail")
    time.sleep(0.1)
"""

JOB = """\
#!/bin/bash
#SBATCH --nodes=3
#SBATCH --no-kill
#SBATCH --output=%x-%j.log
srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 \\
    hpcelastic agent --nnodes 3 --max-restarts 3 --preload argparse --tee both {flags} waiting.py
"""


@pytest.mark.parametrize("backend", ["static", "c10d", "c10d over a file"])
def test_ranks_of_a_job_and_a_failed_worker(backend: str, desk: Desk) -> None:
    (desk.path / "waiting.py").write_text(WAITING)
    flags = {
        "static": "--rdzv-backend static",
        "c10d": '--rdzv-backend c10d --rdzv-endpoint "$SLURMD_NODENAME:29411"',  # the node of the batch script
        "c10d over a file": '--rdzv-backend c10d --rdzv-endpoint "file:$PWD/store"',
    }[backend]
    (desk.path / "job").write_text(JOB.format(flags=flags))
    job = desk.sbatch("job")
    for rank in range(3):
        desk.until_logged(job, rf"round 1 rank {rank} node {rank} of 3")
    (desk.path / "fail").touch()
    for rank in range(3):
        desk.until_logged(job, rf"round 2 rank {rank} node {rank} of 3")
    desk.finish()
    desk.cluster.wait_job(job, "COMPLETED", timeout=ENDED)
    status = desk.run("hpcelastic", "status", f"runs/job-{job}")
    assert re.search(r"succeeded", status), status


def test_static_if_srun_runs_on_a_login_node(desk: Desk) -> None:
    script = "import os; print('rank', os.environ['RANK'], 'node', os.environ['SLURM_NODEID'])\n"
    (desk.path / "rank.py").write_text(script)
    agent = "hpcelastic agent --nnodes 2 --preload argparse --tee out --rdzv-backend static --rdzv-id r rank.py"
    printed = desk.run("salloc", "--nodes=2", "srun", "--ntasks-per-node=1", *agent.split())
    assert {f"rank {rank} node {rank}" for rank in range(2)} == set(re.findall(r"rank \d node \d", printed))
    assert "succeeded" in desk.run("hpcelastic", "status", "runs/r")
