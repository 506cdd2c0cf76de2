"""Lightning supports SLURM itself. Under an agent it starts no processes and requeues no job."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import SlurmCluster
from tests.slurm.test_templates import ENDED, Desk

pytestmark = pytest.mark.slow

SCRIPT = "examples/frameworks/train_lightning.py"
JOB = f"""\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --no-kill --requeue
srun --mpi=pmi2 --no-kill --kill-on-bad-exit=0 --wait=0 \\
    hpcelastic agent --nnodes 1:2 --nproc-per-node 2 --rdzv-endpoint ./runs --tee both \\
    --preload torch,lightning.pytorch {SCRIPT} --output output --epochs 10 --step-time 0.1 || \\
    [ -e "runs/job-$SLURM_JOB_ID/slurm/succeeded-$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}" ]
"""
"""A job in which SLURM's variables describe the agents (two tasks on two nodes), not the workers."""


@pytest.mark.weekly
@pytest.mark.timeout(400)
def test_lightning_neither_starts_processes_nor_requeues(fresh_cluster: Callable[..., SlurmCluster]) -> None:
    desk = Desk(fresh_cluster(nodes=2))
    (desk.path / "job").write_text(JOB)
    job = desk.sbatch("--output=%x-%j.log", "job")
    desk.until_logged(job, "epoch 2: 4 ranks")
    assert sorted(re.findall(r"GLOBAL_RANK: (\d), MEMBER: (\d)/4", desk.log(job))) == [
        (str(rank), str(rank + 1)) for rank in range(4)
    ]
    for node in (1, 2):
        assert sum(map(runs_the_script, desk.cluster.job_pids(job, node))) == 2
    desk.cluster.run("scancel", "--signal=USR1", job)  # without an agent, Lightning would requeue the job now
    desk.until_logged(job, "epoch 3: 4 ranks")
    desk.cluster.fail_node(2)
    desk.until_logged(job, r"resumed after epoch [2-9]: 2 ranks")
    desk.cluster.wait_job(job, "COMPLETED", timeout=ENDED)
    assert desk.cluster.job(job)["Restarts"] == "0"
    assert "trained 10 epochs" in desk.log(job)
    assert not list(desk.path.rglob("hpc_ckpt*"))  # Lightning saves this file before a requeue


def runs_the_script(pid: int) -> bool:
    """Return whether the process is an interpreter that was started for the script."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return SCRIPT in [word.removeprefix(f"{Path.cwd()}/") for word in words[1:3]]
