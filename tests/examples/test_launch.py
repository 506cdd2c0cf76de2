"""examples/launch.py, started as its first lines say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def started(runs: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "examples/launch.py", "--runs", str(runs), *more]
    environ = {**os.environ, "TMPDIR": str(runs.parent.parent)}  # torch leaves a directory for logs there
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=200)


@pytest.mark.slow
def test_it_survives_the_first_attempt_and_its_handler_gets_the_failure(runs: Path) -> None:
    done = started(runs)
    assert done.returncode == 0, done.stdout + done.stderr
    values = [line.partition(", loss")[0] for line in done.stdout.splitlines() if ": y = " in line]
    assert values == ["rank 0: y = 3.000 x + 1.000", "rank 1: y = 3.000 x + 1.000"]
    events = [line.removeprefix("event: ") for line in done.stdout.splitlines() if line.startswith("event: ")]
    assert [event for event in events if "agent" not in event] == [
        *("rank 0 START, 0 restarts", "rank 1 START, 0 restarts"),
        *("rank 0 START, 1 restarts", "rank 1 START, 1 restarts"),
        *("rank 0 SUCCEEDED, 1 restarts", "rank 1 SUCCEEDED, 1 restarts"),
    ]
    assert events[-1] == "agent SUCCEEDED, 1 restarts"


@pytest.mark.slow
def test_without_a_restart_it_reports_the_root_cause(runs: Path) -> None:
    done = started(runs, "--restarts", "0")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1,
        "rank 1 ended with 1: RuntimeError: the first attempt",
    )
