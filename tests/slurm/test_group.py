"""A member of the group of a run changes it, and has no rights in SLURM."""

import os
from pathlib import Path

import pytest

import hpcelastic
from hpcelastic.api.run import Run
from tests.cli.shell import eventually
from tests.cluster import SlurmCluster
from tests.users import GROUP, MEMBER, as_user

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")]

WORKER = """\
import pathlib, time
while not pathlib.Path("finish").exists():
    time.sleep(0.1)
"""


def test_a_member_ends_a_run_and_its_job(desk: SlurmCluster) -> None:
    Path("train.py").write_text(WORKER)
    job = {
        "run": {"name": "r", "group": GROUP.gr_name},
        "entrypoint": {"script": "train.py"},
        "nodes": 2,
        "workers": {"per_node": 1, "stop_grace": 1},
    }
    run = hpcelastic.submit(job)
    eventually(lambda: run.status().phase == "running")
    [number] = run.status().jobs
    said = as_user(MEMBER, lambda: [str(Run(run.directory).status().phase), Run(run.directory).cancel().phase])
    assert said == ["running", "closed"]
    assert run.status().reason == f"cancelled by user {MEMBER}"
    desk.wait_job(number, ("COMPLETED", "FAILED"))
