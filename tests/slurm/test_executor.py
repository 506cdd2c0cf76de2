"""The lines of a batch script after srun."""

import os
import subprocess
from pathlib import Path

import pytest

from hpcelastic.slurm.executor import AgentExecutor, _epilogue

SCONTROL = """#!/bin/sh
case $1 in
--version) echo slurm-wlm {version} ;;
show) echo JobId=7 JobState=RUNNING PreemptTime={preempted} ;;
requeue) echo "$2" >>{directory}/requeued ;;
esac
"""
SINCE, NEVER = "2026-11-22T10:32:23", "None"


@pytest.mark.parametrize(
    ("requested", "preempted", "version", "requeued"),
    [
        pytest.param("", NEVER, "22.05.8", "", id="no request"),
        pytest.param("requeue", NEVER, "22.05.8", "7\n", id="time limit"),
        pytest.param("requeue", NEVER, "24.11.5", "7\n", id="time limit, new SLURM"),
        pytest.param("unknown", NEVER, "24.11.5", "", id="ended by a person"),
        pytest.param("unknown", SINCE, "23.11.4", "7\n", id="preempted"),
        pytest.param("unknown", SINCE, "24.05.0", "", id="preempted, new SLURM"),
        pytest.param("requeue", SINCE, "26.05.5", "", id="the agent's request failed, new SLURM"),
    ],
)
def test_a_batch_script_requeues_a_job_unless_slurm_does(
    requested: str, preempted: str, version: str, requeued: str, tmp_path: Path
) -> None:
    program = tmp_path / "scontrol"
    program.write_text(SCONTROL.format(version=version, preempted=preempted, directory=tmp_path))
    program.chmod(0o755)
    record = tmp_path / "requeued"
    record.touch()
    if requested:
        (tmp_path / "requeue-7.2").write_text(f"{requested}\n")
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}
    done = subprocess.run(["bash", "-c", f"(exit 3){_epilogue(tmp_path)}"], env=environ, capture_output=True)
    assert (done.returncode, record.read_text(), done.stderr) == (3, requeued, b"")
    assert not (tmp_path / "requeue-7.2").exists()


def test_only_the_owner_can_change_what_a_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = tmp_path / "modes"
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"#!/bin/sh\nstat --format=%a {tmp_path}/slurm/*.pkl $1 >{modes}\necho Submitted batch job 7\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    before = os.umask(0)
    try:
        executor = AgentExecutor(folder=tmp_path / "slurm", python="python")
        executor.update_parameters(nodes=1)
        executor.submit(print)
        assert modes.read_text().split() == ["644", "644"]
        executor.make_array(2)
        executor.map_array(print, ["a", "b"])
        assert modes.read_text().split() == ["644", "644", "644", "644"]
    finally:
        os.umask(before)


def test_a_file_that_another_submission_renames_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\necho Submitted batch job 7\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    executor = AgentExecutor(folder=tmp_path / "slurm", python="python")
    executor.update_parameters(nodes=1)
    (tmp_path / "slurm").mkdir(exist_ok=True)
    (tmp_path / "slurm" / "renamed.pkl").symlink_to("elsewhere")  # it is listed, and cannot be found
    assert executor.submit(print).job_id == "7"
