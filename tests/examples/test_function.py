"""examples/function.py, started as its first lines say."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_rank_returns_the_same_line(runs: Path) -> None:
    command = [sys.executable, "examples/function.py", "--runs", str(runs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    values = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    assert [line.partition(", loss")[0] for line in values] == [
        "rank 0: y = 3.000 x + 1.000",
        "rank 1: y = 3.000 x + 1.000",
    ]
    assert "  [1.0] rank 0: step 20 loss" in done.stdout
