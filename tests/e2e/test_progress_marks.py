"""The last progress mark of a worker that is killed is in the event log."""

import signal
from pathlib import Path

from hpcelastic.storage.events import read_event_lines
from tests.cli.shell import TIMEOUT, shell_in

STEPS = """
import os, signal
from hpcelastic.training import should_stop
if os.environ["HPCELASTIC_ROUND"] == "1":
    for step in range(3):
        should_stop()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_event_log_has_the_last_mark_of_a_killed_worker(tmp_path: Path) -> None:
    with shell_in(tmp_path) as shell:
        shell.write({"train.py": STEPS})
        agent = shell.agent("--nnodes=1", "--max-restarts=1", "--preload=", "train.py")
        _, stderr = agent.communicate(timeout=TIMEOUT)
        assert agent.returncode == 0, stderr
        lines = read_event_lines(shell.directory / "runs/r/events")
        killed, ended = [event for event in lines if event["event"] == "worker ended"]
    assert (killed["exit_code"], killed["mark"], killed["mark_value"]) == (-signal.SIGKILL, "step", 3)
    assert 0 <= killed["mark_age"] < TIMEOUT
    assert killed["step"] == 3 and killed["peak_memory"] > 1e6 and killed["cpu_seconds"] > 0
    assert "mark" not in ended, "no mark of an earlier round"
    (totals,) = [event for event in lines if event["event"] == "training totals"]
    assert (totals["round"], totals["steps"]) == (1, 3)
