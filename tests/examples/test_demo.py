"""What `make demo` runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_dies_and_returns_and_the_training_succeeds(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, DEMO, tmp_path], capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    output = ended.stdout
    for line in (
        r"running +round 1: round 1 formed on 3 nodes",
        r"s  SIGKILL of node0: its agent, its workers, everything\n",
        r"running +round 2: round 2 formed on 2 nodes, without node0",
        r"running +round 3: round 3 formed on 3 nodes",
        r"succeeded +round 3: all workers of round 3 succeeded",
        r"\n\n\d+\.\d\d s after the SIGKILL, the workers of round 2 had started\n",
    ):
        assert re.search(line, output), output
    accuracy = re.search(r"test accuracy (\S+);", output)
    assert accuracy and float(accuracy[1]) > 0.95
