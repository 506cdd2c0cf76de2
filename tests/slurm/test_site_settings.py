"""Runs with settings of SLURM that some sites have, and that no other test uses."""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import SlurmCluster, presets, slurm_version
from tests.filesystems.clients import CHECKOUT
from tests.slurm.scenario.cases import CASES
from tests.slurm.scenario.stage import SHAPES, Stage

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(200)]

FreshCluster = Callable[..., SlurmCluster]
WHOLE_NODES = "SelectType=select/linear\nSelectTypeParameters=CR_Memory"
OWN_TMP = "JobContainerType=job_container/tmpfs\nPrologFlags=Contain"
"""Each job has its own /tmp and /dev/shm on each of its nodes."""

FAULTS = ("node killed", "requeue by hand")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fault", FAULTS)
def test_run_survives_with_whole_nodes(fault: str, shape: str, fresh_cluster: FreshCluster) -> None:
    survive(fresh_cluster(nodes=4, extra_conf=f"{presets.QUICK}\n{WHOLE_NODES}"), fault, shape)


@pytest.mark.skipif((0, 0) < slurm_version() < (23, 2), reason="this SLURM often fails to start jobs with the plug-in")
@pytest.mark.skipif(
    any(path.is_relative_to("/tmp") for path in (CHECKOUT, Path(sys.prefix))), reason="the jobs could not see /tmp"
)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fault", FAULTS)
def test_run_survives_with_a_tmp_for_each_job(
    fault: str, shape: str, fresh_cluster: FreshCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")  # the jobs must see the directory of the cluster
    with tempfile.TemporaryDirectory() as base:
        directories = [f"NodeName=n{node} AutoBasePath=true BasePath={base}/n{node}" for node in range(1, 5)]
        container = {"job_container.conf": "\n".join([*directories, ""])}
        cluster = fresh_cluster(nodes=4, extra_conf=f"{presets.QUICK}\n{OWN_TMP}", more_files=container)
        job = cluster.submit("ls -A /tmp /dev/shm")
        cluster.wait_job(job, "COMPLETED")
        assert cluster.output(job).split() == ["/dev/shm:", "/tmp:"]
        survive(cluster, fault, shape)
        cluster.stop()


def survive(cluster: SlurmCluster, fault: str, shape: str) -> None:
    case = CASES[fault]
    with Stage(cluster, case.setting(shape)) as stage:
        case.play(stage)
        case.end(stage)
        assert stage.run.status().restarts == case.restarts, stage.describe()
        assert stage.job_states() <= case.ends(shape)
