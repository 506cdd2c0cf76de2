"""The first files of a project: their values, and that they are a job that runs."""

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.api.starter import choose_partition, starter_files, write_files
from hpcelastic.config import load
from hpcelastic.errors import ConfigError
from hpcelastic.slurm.partitions import Partition
from tests.cli.shell import Shell, shell_in

BATCH = Partition("batch", 40, 64, 256000, 0, "1-00:00:00", default=True)
GPU = Partition("gpu", 8, 128, 1031000, 8, "infinite")
SHORT = Partition("short", 1, 1, 900, 4, "20:00")


def test_a_partition_with_gpus_is_chosen_and_then_the_default() -> None:
    assert choose_partition([BATCH, GPU, SHORT], "") is GPU
    assert choose_partition([BATCH, Partition("large", 90, 64, 1, 0, "")], "") is BATCH
    assert choose_partition([BATCH, GPU], "batch") is BATCH
    assert choose_partition([], "") is None
    with pytest.raises(ConfigError, match="--partition is gpus, which accepts no jobs; SLURM has: batch, gpu"):
        choose_partition([BATCH, GPU], "gpus")


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (BATCH, ("batch", "30", 2, None, 1, 2)),
        (GPU, ("gpu", "30", 128, "8", 1, 2)),
        (SHORT, ("short", "20", 1, "4", 1, 1)),
        (None, (None, "30", 2, None, 1, 2)),
    ],
)
def test_the_request(
    chosen: Partition | None, expected: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = starter_files([] if chosen is None else [BATCH, GPU, SHORT], chosen, "mine.py")
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, {**texts, "mine.py": ""}, force=False)
    job = load("job.yaml", []).config
    gpus = None if job.slurm.gpus_per_node is None else str(job.slurm.gpus_per_node)
    found = (job.slurm.partition, job.slurm.time, job.slurm.cpus_per_node, gpus, job.nodes.min, job.nodes.max)
    assert found == expected
    if chosen is not None:
        assert "#   gpu: 8 nodes with 128 processors, 1006 GiB, 8 GPUs; limit infinite" in texts["job.yaml"]
        assert f"#SBATCH --partition={chosen.name}\n" in texts["job.sbatch"]
    assert not [text for text in texts.values() if "{{" in text]
    assert subprocess.run(["bash", "-n", str(tmp_path / "job.sbatch")]).returncode == 0


def test_the_name_of_a_script_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "a #b: 'ü'.py"
    monkeypatch.chdir(tmp_path)
    texts = starter_files([], None, name)
    write_files(tmp_path, {**texts, name: ""}, force=False)
    assert load("job.yaml", []).config.entrypoint.script == name
    assert shlex.quote(name) in texts["job.sbatch"]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


def test_files_that_exist_are_kept(shell: Shell) -> None:
    shell.write({"train.py": "mine", "job.sbatch": "mine"})
    done = shell.command("init")
    assert done.returncode == 2
    assert "job.sbatch exists; remove it, name another directory, or add --force" in done.stderr
    assert sorted(path.name for path in shell.directory.glob("*.*")) == ["job.sbatch", "train.py"]
    assert shell.command("init", "--force").returncode == 0
    assert (shell.directory / "train.py").read_text() == "mine"
    assert (shell.directory / "job.sbatch").read_text() != "mine"


def test_a_script_of_the_user(shell: Shell) -> None:
    (shell.directory / "code").mkdir()
    done = shell.command("init", "code", "--script", "mine.py")
    assert "--script: code/mine.py: no such file; its path is relative to code" in done.stderr
    (shell.directory / "code" / "mine.py").touch()
    assert shell.command("init", "code", "--script", "mine.py").returncode == 0
    assert "script: mine.py" in (shell.directory / "code" / "job.yaml").read_text()
    assert not (shell.directory / "code" / "train.py").exists()
    assert shell.command("init", "new", "--script", "../code/mine.py").returncode == 0


@pytest.mark.slow
def test_the_first_run(shell: Shell) -> None:
    assert shell.command("init").returncode == 0
    done = shell.hpcelastic("run", "job.yaml", "--nodes", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    logs = shell.hpcelastic("logs", "runs/train").stdout
    assert "step 200: loss" in logs and ", 2 ranks" in logs and "done" in logs
