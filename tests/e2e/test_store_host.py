"""The agent of rank 0's node serves the store of a round as long as the round needs it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.storage.events import read_event_lines
from tests.cli.shell import TIMEOUT, Shell, eventually, shell_in

CONNECT = """
import os, sys, time
from datetime import timedelta
from pathlib import Path
from torch.distributed import TCPStore

rank, round = os.environ["RANK"], os.environ["HPCELASTIC_ROUND"]
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = TCPStore(*address, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))
"""

WAITS = f"""{CONNECT}
store.set("here", rank)
Path("notes", f"{{round}}.{{rank}}").touch()
while round == "1":
    time.sleep(0.01)
"""

LEAVES_EARLY = f"""{CONNECT}
if rank == "0":
    sys.exit(0)
while not Path("notes", "continue").exists():
    time.sleep(0.01)
store.set("alone", "yes")
assert store.get("alone") == b"yes"
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        (tmp_path / "notes").mkdir()
        made.write({"waits.py": WAITS, "early.py": LEAVES_EARLY, "alone.py": "print('trained')\n"})
        yield made


def events(shell: Shell, name: str) -> list[dict[str, Any]]:
    lines = read_event_lines(shell.directory / "runs/r/events")
    return [event for event in lines if event["event"] == name]


def nodes(shell: Shell, script: str, *flags: str) -> list[Any]:
    given = ("--nnodes=2", "--max-restarts=0", *flags, script)
    return [shell.agent("--node-name", f"n{i}", "--node-rank", f"{i}", *given) for i in (0, 1)]


def finish(agents: list[Any]) -> None:
    for agent in agents:
        _, stderr = agent.communicate(timeout=2 * TIMEOUT)
        assert agent.returncode == 0, stderr


@pytest.mark.slow
def test_a_killed_store_host_ends_the_round_without_a_restart(shell: Shell) -> None:
    agents = nodes(shell, "waits.py")
    eventually(lambda: {"1.0", "1.1"} <= set(os.listdir(shell.directory / "notes")))
    (served,) = events(shell, "store served")
    os.kill(served["pid"], signal.SIGKILL)
    finish(agents)
    assert {"2.0", "2.1"} <= set(os.listdir(shell.directory / "notes"))
    assert [event["exit_code"] for event in events(shell, "store lost")] == [-signal.SIGKILL]
    assert shell.processes() == {}


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--preload=",)], ids=["forked", "fresh"])
def test_the_store_outlives_the_workers_of_its_node(shell: Shell, flags: tuple[str, ...]) -> None:
    agents = nodes(shell, "early.py", *flags)
    eventually(lambda: bool(events(shell, "worker ended")))
    (shell.directory / "notes/continue").touch()
    finish(agents)
    assert len(events(shell, "store served")) == 1
    assert shell.processes() == {}


@pytest.mark.slow
def test_a_script_without_a_store_has_none(shell: Shell) -> None:
    finish(nodes(shell, "alone.py"))
    assert events(shell, "worker ended")
    assert events(shell, "store served") == []
