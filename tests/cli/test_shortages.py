"""Commands with a job file warn if the job requests too little."""

from pathlib import Path

import pytest

from hpcelastic.cli import main

JOB = "entrypoint: {script: train.py}\nworkers: {per_node: 4}\nslurm: {gpus_per_node: 2}\n"


COMMANDS = pytest.mark.parametrize(
    ("command", "name"),
    [(["config", "show"], "config"), (["sbatch"], "sbatch"), (["submit", "--dry-run"], "submit")],
    ids=["config", "sbatch", "submit"],
)


@COMMANDS
def test_more_workers_than_gpus(
    command: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("job.yaml").write_text(JOB)
    assert main([*command, "job.yaml"]) == 0
    assert capsys.readouterr().err.startswith(
        f"hpcelastic {name}: workers.per_node is 4, more than slurm.gpus_per_node"
    )


@COMMANDS
def test_an_old_name_of_a_key(
    command: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("job.yaml").write_text("entrypoint: {script: train.py}\nnetwork: {doorbell: false}\n")
    assert main([*command, "job.yaml"]) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "doorbell" in line]
    assert warnings == [
        f"hpcelastic {name}: job.yaml:2: network.doorbell: is the old name of network.notifications; "
        "write network.notifications instead"
    ]
