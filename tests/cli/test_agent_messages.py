"""What `hpcelastic agent` prints before its agent starts."""

import os
import subprocess
import sys
from pathlib import Path

from tests.agent.processes import TIMEOUT

STEP = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_STEP_ID": "0"}

AGENT = """
import sys
from hpcelastic.cli import agent, main
agent._run_task = lambda task, args, restart: {statuses}[restart.number]
sys.exit(main(["agent", *{flags}, "--standalone", "train.py"]))
"""


def agent(
    directory: Path, stderr: object, *statuses: int, flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the agent of a job step, which ends with these statuses, one after each start."""
    (directory / "train.py").touch()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    return subprocess.run(
        [sys.executable, "-c", AGENT.format(statuses=statuses, flags=flags)],
        cwd=directory,
        env={**environ, **STEP, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
        stderr=stderr,  # type: ignore[call-overload]  # a file or a number
        text=True,
        timeout=TIMEOUT,
    )


def test_an_agent_starts_although_the_disk_of_its_output_is_full(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        assert agent(tmp_path, full, 0).returncode == 0


def test_the_messages_of_an_agent_that_is_started_again_are_printed_once(tmp_path: Path) -> None:
    ended = agent(tmp_path, subprocess.PIPE, 70, 0)
    assert ended.returncode == 0
    assert ended.stderr.count("this run is stored in") == 1


def test_a_wrong_input_is_printed_without_a_start(tmp_path: Path) -> None:
    ended = agent(tmp_path, subprocess.PIPE, flags=("--total-time=soon",))
    assert ended.returncode == 2
    assert "--total-time is 'soon'" in ended.stderr
