"""Workers that are forked by the fork server of a real agent."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import TIMEOUT, Shell, eventually, shell_in

NOTES = """
import json, os, sys, time
memory = next(line.split()[0] for line in open("/proc/self/maps") if "[vdso]" in line)  # the same in all forks
note = {"ppid": os.getppid(), "preloaded": "numpy" in sys.modules, "memory": memory}
name = os.environ["HPCELASTIC_ROUND"] + "." + os.environ["RANK"]
open(name + ".draft", "w").write(json.dumps(note)); os.rename(name + ".draft", name + ".json")
while not os.path.exists(os.environ["HPCELASTIC_ROUND"] + ".go"):
    time.sleep(0.01)
sys.exit(0 if os.path.exists("finish") else 3)
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        made.write({"train.py": NOTES})
        yield made


def notes(shell: Shell, round: int) -> list[dict[str, object]]:
    """Wait for the notes of both workers of a round and return them."""
    eventually(lambda: len(list(shell.directory.glob(f"{round}.*.json"))) == 2)
    return [json.loads(path.read_text()) for path in sorted(shell.directory.glob(f"{round}.*.json"))]


@pytest.mark.slow
@pytest.mark.parametrize(("preload", "parents"), [("numpy", 1), ("", 0)], ids=["forked", "fresh"])
def test_restarts_are_forked_from_one_parent(shell: Shell, preload: str, parents: int) -> None:
    agent = shell.agent("--preload", preload, "--nproc-per-node=2", "--max-restarts=2", "train.py")
    seen: set[object] = set()
    for round in (1, 2, 3):
        found = notes(shell, round)
        assert [note["ppid"] for note in found] == [agent.pid] * 2
        assert [note["preloaded"] for note in found] == [bool(parents)] * 2
        lines = shell.processes().values()
        assert sum("fork_server_main.py" in line for line in lines) in ((1, 2, 3, 4) if parents else (0,))
        seen |= {note["memory"] for note in found}
        if round == 3:
            (shell.directory / "finish").touch()
        (shell.directory / f"{round}.go").touch()
    _, stderr = agent.communicate(timeout=2 * TIMEOUT)
    assert agent.returncode == 0, stderr
    assert len(seen) == (1 if parents else 6), "the same memory in all of them, or in none"
    assert shell.processes() == {}


def test_the_fork_server_and_workers_of_a_killed_agent_are_killed(shell: Shell) -> None:
    agent = shell.agent("--preload", "numpy", "--nproc-per-node=2", "train.py")
    notes(shell, 1)
    assert sum("fork_server_main.py" in line for line in shell.processes().values()) >= 1
    agent.kill()
    eventually(lambda: shell.processes() == {})


def test_a_signal_while_workers_start_leaves_no_process(shell: Shell) -> None:
    os.mkfifo(shell.directory / "gate")
    shell.write({"slow.py": "open('gate').read()"})
    agent = shell.agent("--preload", "slow", "--nproc-per-node=2", "train.py")
    eventually(lambda: "running" in shell.hpcelastic("list").stdout)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(TIMEOUT) == 128 + signal.SIGTERM
    assert shell.processes() == {}
    assert not list(shell.directory.glob("1.*.json"))


def test_a_failed_preload_is_reported_once_and_the_run_continues(shell: Shell) -> None:
    (shell.directory / "finish").touch()
    (shell.directory / "1.go").touch()
    agent = shell.agent("--preload", "no_such_module", "--nproc-per-node=2", "train.py")
    _, stderr = agent.communicate(timeout=2 * TIMEOUT)
    assert agent.returncode == 0, stderr
    assert stderr.count("import no_such_module: ModuleNotFoundError") == 1
    assert [note["preloaded"] for note in notes(shell, 1)] == [False, False]
