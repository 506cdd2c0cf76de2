"""Jobs in cgroups of SLURM, as most sites have them: processes are tracked, and memory is limited, by a cgroup.

The cgroups of a cluster have the names of its nodes, and this machine has one tree of cgroups. So only one such cluster
may exist at a time.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import filelock
import pytest

import hpcelastic
from hpcelastic.api.run import Run
from tests.cli.shell import eventually
from tests.cluster import SlurmCluster

MEMORY = Path("/sys/fs/cgroup/memory")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.access(MEMORY / "tasks", os.W_OK), reason="no writable memory cgroups of version 1 here"),
]

CONF = """
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/cgroup
SelectTypeParameters=CR_Core_Memory
"""

WORKER = """\
import os, pathlib, time
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and pathlib.Path("fault").exists()
if first and os.environ["RANK"] == "1":
    bytearray(2 << 30)
while not pathlib.Path("finish").exists():
    time.sleep(0.1)
"""


@pytest.fixture
def cluster(
    fresh_cluster: Callable[..., SlurmCluster], enter: Callable[[SlurmCluster], SlurmCluster]
) -> Iterator[SlurmCluster]:
    """A cluster of two nodes with cgroups, in a directory that both share."""
    with filelock.FileLock(Path(tempfile.gettempdir()) / "hpcelastic-cgroups.lock", mode=0o666):
        made = fresh_cluster(nodes=2, extra_conf=CONF, cgroup_conf="ConstrainRAMSpace=yes\nConstrainCores=yes")
        yield enter(made)
        made.stop()
        for controller in Path("/sys/fs/cgroup").iterdir():
            for node in made.nodes:
                remove(controller / f"slurm_{node}")


def remove(cgroup: Path) -> None:
    for part in sorted(cgroup.glob("**/"), reverse=True):
        with suppress(OSError):
            part.rmdir()


def start() -> Run:
    Path("train.py").write_text(WORKER)
    job = {
        "run": {"name": "r"},
        "entrypoint": {"script": "train.py"},
        "nodes": 2,
        "workers": {"per_node": 1, "stop_grace": 1, "preload": []},
        "slurm": {"memory": "600M"},
    }
    return hpcelastic.submit(job)


def finish(run: Run) -> None:
    Path("finish").touch()
    assert run.wait(90).phase == "succeeded"


def test_a_worker_that_exceeds_the_memory_of_its_job_is_named(cluster: SlurmCluster) -> None:
    Path("fault").touch()
    run = start()
    eventually(lambda: run.status().phase == "running" and run.status().round == 2)
    assert "because of a lack of memory: the limit of the job is 600 MiB" in str(run.why(1))
    finish(run)
    [job] = run.status().jobs
    cluster.wait_job(job, ("COMPLETED", "FAILED", "OUT_OF_MEMORY"))


def test_a_requeue_leaves_no_process(cluster: SlurmCluster) -> None:
    run = start()
    eventually(lambda: run.status().phase == "running")
    [job] = run.status().jobs
    cluster.run("scontrol", "requeue", job)
    cluster.start_now(job)
    eventually(lambda: run.status().phase == "running" and run.status().round == 2)
    assert run.status().restarts == 0
    finish(run)
    cluster.wait_job(job, "COMPLETED")
