"""Commands that start no worker need no torch."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell, shell_in

BLOCK = """\
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Block())
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        made.write({"without/sitecustomize.py": BLOCK})
        made.environ["PYTHONPATH"] = str(tmp_path / "without")
        yield made


def test_a_job_is_written_checked_and_prepared_without_torch(shell: Shell) -> None:
    assert shell.hpcelastic("init").returncode == 0
    shown = shell.hpcelastic("config", "show", "job.yaml")
    assert shown.returncode == 0 and "script: train.py" in shown.stdout
    script = shell.hpcelastic("submit", "--dry-run", "job.yaml")
    assert script.returncode == 0 and "#SBATCH --nodes=" in script.stdout


@pytest.mark.slow
def test_the_failure_of_a_run_names_torch(shell: Shell) -> None:
    shell.hpcelastic("init")
    run = shell.hpcelastic("run", "job.yaml", "restarts.max=0", "--nodes", "1")
    assert run.returncode == 1
    status = shell.hpcelastic("status", "runs/train")
    assert "failed: rank 0 failed on node0: ModuleNotFoundError: No module named 'torch'" in status.stdout
