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

ROOT = Path("/sys/fs/cgroup")
V1 = os.access(ROOT / "memory/tasks", os.W_OK)
CONTROLLERS = (ROOT / "cgroup.controllers").read_text().split() if os.access(ROOT / "cgroup.procs", os.W_OK) else []
"""Of version 2. Those that version 1 has are not among them."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not V1 and "memory" not in CONTROLLERS, reason="no writable memory cgroups here"),
]

CONF = """
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/cgroup
SelectTypeParameters=CR_Core_Memory
"""

PLUGIN = "CgroupPlugin=cgroup/v1" if V1 else "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes"
"""With version 2, slurmd would ask systemd for a cgroup."""

OWN_TREE = f"""
own={ROOT}/${{dir##*/}}-$name
mkdir $own
echo 0 >$own/cgroup.procs
set -- unshare --cgroup bash -ec '
    umount {ROOT}
    mount -t cgroup2 cgroup2 {ROOT}
    mkdir -p {ROOT}/init.scope {ROOT}/system.slice/slurmd.service
    echo 1 >{ROOT}/init.scope/cgroup.procs
    echo 0 >{ROOT}/system.slice/slurmd.service/cgroup.procs
    enabled="$(sed "s/[^ ]*/+&/g" {ROOT}/cgroup.controllers)"
    for parent in {ROOT} {ROOT}/system.slice; do echo "$enabled" >$parent/cgroup.subtree_control; done
    exec "$@"' slurmd "$@"
"""
"""The set-up of a host, which then has the cgroups that systemd makes. slurmd makes its own ones beside them."""

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
        if not V1:
            (ROOT / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in CONTROLLERS))
        cores = ["ConstrainCores=yes"] if V1 or "cpuset" in CONTROLLERS else []
        limits = {"cgroup.conf": "\n".join([PLUGIN, "ConstrainRAMSpace=yes", *cores, ""])}
        made = fresh_cluster(nodes=2, extra_conf=CONF, more_files=limits, setup="" if V1 else OWN_TREE)
        yield enter(made)
        made.stop()
        for cgroup in (*ROOT.glob("*/slurm_n[12]"), *ROOT.glob(f"{made.path.name}-n[12]")):
            remove(cgroup)


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
