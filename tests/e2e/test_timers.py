"""A worker that hangs while it has set a timer is killed, and the run goes on like after any failure."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.protocol.events import TimerExpired
from hpcelastic.storage.events import read_events
from tests.api.jobs import job
from tests.cli.shell import TIMEOUT, Shell, shell_in

HANGS = """\
import json, os, sys, time
from pathlib import Path
pipe, round = os.environ["TORCHELASTIC_TIMER_FILE"], os.environ["HPCELASTIC_ROUND"]
Path("said", f"{round}.{os.environ['RANK']}").write_text(pipe)
if os.environ["RANK"] == "1" and round == "1":
    request = {"version": 1, "pid": os.getpid(), "scope_id": "save", "expiration_time": time.time() + 0.2, "signal": 9}
    fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, json.dumps(request).encode() + b"\\n")
    os.close(fd)
    time.sleep(1000)
"""
"""Rank 1 hangs in round 1, after it has written what torch's client writes."""

WITH_TORCH = """\
import os, sys, time
from torch.distributed.elastic import timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=1000, scope="outer"):
    with timer.expires(after=0.2 if sys.argv[1] == "hangs" else 1000, scope="all_reduce"):
        time.sleep(1000 if sys.argv[1] == "hangs" and os.environ["HPCELASTIC_ROUND"] == "1" else 0.01)
print("done in", os.environ["HPCELASTIC_ROUND"])
"""

ENABLED = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        for name in [name for name in made.environ if name.startswith("TORCHELASTIC")]:
            del made.environ[name]
        (tmp_path / "tmp").mkdir()
        (tmp_path / "said").mkdir()
        made.environ["TMPDIR"] = str(tmp_path / "tmp")
        made.write({"hangs.py": HANGS, "with_torch.py": WITH_TORCH})
        yield made


def ended(process: Any, status: int) -> str:
    """Wait for the end of an agent, and return its standard error."""
    _, stderr = process.communicate(timeout=2 * TIMEOUT)
    assert process.returncode == status, stderr
    return str(stderr)


def expired(shell: Shell) -> list[tuple[int, int, str, str | None]]:
    events = [logged.event for logged in read_events(shell.directory / "runs" / "r" / "events")]
    return [(e.round, e.rank, e.scope, e.sent) for e in events if isinstance(e, TimerExpired)]


def test_the_round_is_restarted(shell: Shell) -> None:
    stderr = ended(shell.agent("--nproc-per-node=2", "--max-restarts=1", "--preload=", "hangs.py", environ=ENABLED), 0)
    assert "rank 1: the timer 'save' has expired; sending SIGKILL to process " in stderr
    assert "rank 1 failed: killed by SIGKILL (the timer 'save' had expired)" in stderr
    assert expired(shell) == [(1, 1, "save", "SIGKILL")]
    said = {path.name: path.read_text() for path in (shell.directory / "said").iterdir()}
    assert said.keys() == {"1.0", "1.1", "2.0", "2.1"}
    (pipe,) = set(said.values())
    assert Path(pipe).is_relative_to(shell.environ["TMPDIR"])
    assert os.listdir(shell.environ["TMPDIR"]) == []
    assert shell.processes() == {}


def test_without_a_restart_the_error_of_the_run_names_the_timer(shell: Shell) -> None:
    pipe, report = shell.directory / "mine", shell.directory / "error.json"
    environ = {**ENABLED, "TORCHELASTIC_TIMER_FILE": str(pipe), "TORCHELASTIC_ERROR_FILE": str(report)}
    ended(shell.agent("--nproc-per-node=2", "--preload=", "hangs.py", environ=environ), 1)
    message = json.loads(report.read_text())["message"]["message"]
    assert message == "killed by SIGKILL (the timer 'save' had expired)"
    assert (shell.directory / "said" / "1.1").read_text() == str(pipe)
    assert not pipe.exists()


def test_a_job_file_asks_for_timers(shell: Shell) -> None:
    settings = job(script=str(shell.directory / "hangs.py"), restarts={"max": 1})
    settings["run"]["directory"] = str(shell.directory / "runs")
    settings["workers"] = {"per_node": 2, "preload": [], "timers": True}
    paths = prepare(resolve(settings, []))
    ended(shell.start("-m", "hpcelastic", "agent", "--run-dir", str(paths.root)), 0)
    assert expired(shell) == [(1, 1, "save", "SIGKILL")]


def test_without_being_asked_the_agent_serves_no_timers(shell: Shell) -> None:
    shell.write({"looks.py": "import os, sys\nsys.exit('TORCHELASTIC_TIMER_FILE' in os.environ)\n"})
    ended(shell.agent("--preload=", "looks.py", environ={"TORCHELASTIC_ENABLE_FILE_TIMER": "0"}), 0)


@pytest.mark.slow
@pytest.mark.parametrize("preload", ["", "torch"], ids=["fresh", "forked"])
def test_scripts_use_the_timers_of_torch(preload: str, shell: Shell) -> None:
    agent = shell.agent(f"--preload={preload}", "--max-restarts=1", "with_torch.py", "hangs", environ=ENABLED)
    stdout, stderr = agent.communicate(timeout=2 * TIMEOUT)
    assert (agent.returncode, stdout) == (0, "done in 2\n"), stderr
    assert expired(shell) == [(1, 0, "all_reduce", "SIGKILL")]


@pytest.mark.slow
def test_a_timer_that_does_not_expire_has_no_effect(shell: Shell) -> None:
    agent = shell.agent("--nproc-per-node=2", "with_torch.py", "works", environ=ENABLED)
    stdout, stderr = agent.communicate(timeout=2 * TIMEOUT)
    assert (agent.returncode, stdout) == (0, 2 * "done in 1\n"), stderr
    assert expired(shell) == []
