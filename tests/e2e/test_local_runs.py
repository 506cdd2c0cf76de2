"""Runs on one machine: `hpcelastic run` in a terminal or without one, and the commands around it."""

import fcntl
import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run
from hpcelastic.backends.files import FileBackend
from hpcelastic.rendezvous.run import read_state
from hpcelastic.storage.paths import RunPaths
from tests.cli.shell import JOB, TIMEOUT, Shell, eventually, shell_in
from tests.e2e.proof import check_proof

WAITS = str(Path(__file__).with_name("scripts") / "waits.py")
STEADY = str(Path(__file__).with_name("steady.py"))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        made.write({"job.yaml": JOB, "train.py": "print('trained')\n"})
        yield made


class LocalRun:
    """`hpcelastic run` in the directory ``runs/r``."""

    def __init__(self, shell: Shell, *overrides: str, script: str = WAITS, nodes: str = "2") -> None:
        self.directory = shell.directory / "runs" / "r"
        # The first round has all nodes, also if one of them starts late on a busy machine.
        waits = "rendezvous.last_call=8"
        arguments = [f"nodes={nodes}", f"entrypoint.script={script}", waits, *overrides]
        self.process = shell.start("-m", "hpcelastic", "run", "job.yaml", *arguments)
        eventually(lambda: (self.directory / "rendezvous").is_dir())
        self.run = Run(self.directory)

    def await_round(self, number: int, nodes: int) -> None:
        """Wait until that round runs with workers on so many nodes."""

        def running() -> bool:
            status = self.run.status()
            stands = [node.node_state for node in status.nodes if node.ranks]
            return status.round >= number and status.phase == "running" and stands == ["running"] * nodes

        eventually(running)

    def await_notes(self, number: int, nodes: int) -> None:
        """Wait until that round runs and the worker of each node, which runs `steady.py`, has recorded it."""
        self.await_round(number, nodes)
        eventually(lambda: len(list((self.directory / "proof").glob(f"{number}.*.json"))) == nodes)

    def await_hello(self, count: int) -> None:
        """Wait until ``count`` workers have printed their greeting."""
        eventually(lambda: sum("hello" in line for line in self.run.logs()) >= count)

    def finish(self) -> None:
        """Let the workers end. Fail unless the run succeeds."""
        (self.directory / "finish").touch()
        _, stderr = self.process.communicate(timeout=TIMEOUT)
        assert self.process.returncode == 0, stderr


# With and without a terminal


@pytest.mark.slow
def test_plain_lines_without_a_terminal(shell: Shell) -> None:
    done = shell.hpcelastic("run", "job.yaml", "--nodes", "2", "nodes=1..2")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert re.search(r"^--- succeeded, round \d+, world size 2: all workers of round \d+ succeeded$", done.stdout, re.M)
    assert sorted(re.findall(r"^\[1\.(\d)\] trained$", done.stdout, re.M)) == ["0", "1"]
    assert done.stderr == ""
    assert shell.processes() == {}


class Terminal:
    """A pseudo-terminal with a command in its foreground."""

    RUN = """if True:
        import fcntl, os, sys, termios
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    """

    def __init__(self, shell: Shell, *arguments: str) -> None:
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.RUN, "-m", "hpcelastic", *arguments],
            cwd=shell.directory,
            env=shell.environ | {"TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        self._read: list[bytes] = []
        threading.Thread(target=self._drain, daemon=True).start()

    @property
    def shown(self) -> str:
        return b"".join(self._read).decode()

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def attributes(self) -> list[object]:
        return termios.tcgetattr(self._theirs)

    def _drain(self) -> None:
        while data := os.read(self._ours, 65536):
            self._read.append(data)


HIDE_CURSOR, SHOW_CURSOR, UP = "\x1b[?25l", "\x1b[?25h", "\x1b[1A"


@pytest.mark.slow
def test_live_display_in_a_terminal_which_is_restored(shell: Shell) -> None:
    terminal = Terminal(shell, "run", "job.yaml", "nodes=2", f"entrypoint.script={WAITS}")
    eventually(lambda: "hello from rank 1 of 2" in terminal.shown and "ranks 1" in terminal.shown)
    (shell.directory / "runs/r/finish").touch()
    assert terminal.process.wait(TIMEOUT) == 0
    eventually(lambda: SHOW_CURSOR in terminal.shown)
    assert "round 1  world size 2  restarts 0/0" in re.sub(r"\x1b\[[\d;]*m", "", terminal.shown)
    assert UP in terminal.shown, "the display is drawn in place"
    assert terminal.shown.rindex(SHOW_CURSOR) > terminal.shown.rindex(HIDE_CURSOR)
    assert terminal.attributes() == terminal.before
    assert shell.processes() == {}


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_stops_everything_and_restores_it(shell: Shell) -> None:
    terminal = Terminal(shell, "run", "job.yaml", "nodes=2", f"entrypoint.script={WAITS}")
    eventually(lambda: "hello from rank 1 of 2" in terminal.shown)
    terminal.press(b"\x03")
    assert terminal.process.wait(TIMEOUT) == 130
    eventually(lambda: "--resume" in terminal.shown)
    assert terminal.shown.rindex(SHOW_CURSOR) > terminal.shown.rindex(HIDE_CURSOR)
    assert terminal.attributes() == terminal.before
    assert shell.processes() == {}


# Interrupts


@pytest.mark.slow
def test_an_interrupt_stops_everything_and_prints_the_command_to_continue(shell: Shell) -> None:
    local = LocalRun(shell)
    local.await_hello(2)
    local.process.send_signal(signal.SIGINT)
    _, stderr = local.process.communicate(timeout=TIMEOUT)
    assert local.process.returncode == 130
    assert shell.processes() == {}
    again = re.search(r"^interrupted; continue with: hpcelastic (.*)$", stderr, re.M)
    assert again, stderr
    (local.directory / "finish").touch()
    done = shell.hpcelastic(*shlex.split(again[1]))
    assert done.returncode == 0, done.stderr
    assert "[1." not in done.stdout, "earlier output is not repeated"
    assert local.run.status().round == 2
    assert sorted(path.name for path in (local.directory / "logs").iterdir()) == ["round-0001", "round-0002"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "status"),
    [pytest.param(signal.SIGTERM, 143, id="SIGTERM"), pytest.param(signal.SIGHUP, 129, id="terminal-closed")],
)
def test_other_signals_stop_everything_too(signum: signal.Signals, status: int, shell: Shell) -> None:
    local = LocalRun(shell)
    local.await_hello(2)
    local.process.send_signal(signum)
    assert local.process.wait(TIMEOUT) == status
    assert shell.processes() == {}


@pytest.mark.slow
def test_second_interrupt_stops_at_once(shell: Shell) -> None:
    local = LocalRun(shell, "workers.stop_grace=600", "entrypoint.args=[ignore-sigterm]")
    local.await_hello(2)
    local.process.send_signal(signal.SIGINT)
    eventually(lambda: all("stopping the workers" in log.read_text() for log in local.directory.glob("agent-*.log")))
    local.process.send_signal(signal.SIGINT)
    assert local.process.wait(TIMEOUT) == 130
    assert shell.processes() == {}


@pytest.mark.slow
def test_interrupt_while_the_agents_start(shell: Shell) -> None:
    local = LocalRun(shell)
    local.process.send_signal(signal.SIGINT)
    assert local.process.wait(TIMEOUT) == 130
    assert shell.processes() == {}


# The commands around a run


@pytest.mark.slow
def test_logs_status_list_and_cancel_of_a_running_run(shell: Shell) -> None:
    local = LocalRun(shell)
    local.await_hello(2)
    local.await_round(1, nodes=2)
    assert shell.hpcelastic("logs", "r", "--rank", "1").stdout == "[1.1] hello from rank 1 of 2 on node1\n"
    assert len(shell.hpcelastic("logs", "runs/r").stdout.splitlines()) == 2
    status = shell.hpcelastic("status").stdout
    assert "phase      running: round 1 formed on 2 nodes" in status
    assert re.search(r"node0 +running +ranks 0\n +node1 +running +ranks 1\n", status)
    assert re.match(r"r +running +round 1 ", shell.hpcelastic("list").stdout)
    follower = shell.start("-m", "hpcelastic", "logs", "-f", "r")
    assert follower.stdout is not None
    assert "hello" in follower.stdout.readline(), "lines are not buffered"
    cancelled = shell.hpcelastic("cancel", "r")
    assert re.match(r"r has closed: cancelled by ", cancelled.stdout)
    assert follower.wait(TIMEOUT) == 0, "following ends when the run ends"
    assert local.process.wait(TIMEOUT) == 1
    assert re.match(r"r +closed +round 1 +cancelled by ", shell.hpcelastic("list").stdout)
    assert shell.processes() == {}
    assert shell.hpcelastic("cancel", "r").returncode == 0, "cancelling twice is no error"


@pytest.mark.slow
def test_logs_to_a_reader_that_ends(shell: Shell) -> None:
    shell.write({"train.py": "for i in range(100_000): print(i)\n"})
    assert shell.hpcelastic("run", "job.yaml").returncode == 0
    reader = shell.start("-m", "hpcelastic", "logs", "r")
    assert reader.stdout is not None
    assert reader.stdout.readline() == "[1.0] 0\n"
    reader.stdout.close()
    assert reader.wait(TIMEOUT) == 141
    assert reader.stderr is not None
    assert reader.stderr.read() == ""


# Failures


@pytest.mark.slow
def test_spent_budget_ends_the_run_with_its_root_cause(shell: Shell) -> None:
    shell.write(
        {"train.py": "import os, sys\nif os.environ['RANK'] == '1':\n    sys.exit(3)\nimport time; time.sleep(60)\n"}
    )
    done = shell.hpcelastic("run", "job.yaml", "nodes=2", "restarts.max=1")
    assert done.returncode == 1
    log = shell.directory / "runs/r/logs/round-0002/rank-00001.err"
    assert done.stderr == f"root cause: rank 1 on node1 in round 2: exit status 3\n  log: {log}\n"
    status = shell.hpcelastic("status", "r").stdout
    assert "restarts   1 of 1" in status
    assert "(restarts.max is 1, all spent)" in status
    assert shell.processes() == {}


@pytest.mark.slow
def test_a_run_continues_without_a_killed_agent(shell: Shell) -> None:
    local = LocalRun(shell, script=STEADY, nodes="1..2")
    local.await_notes(1, nodes=2)
    os.kill(shell.pid_of("--node-name node0"), signal.SIGKILL)
    local.await_notes(2, nodes=1)
    local.finish()
    assert check_proof(local.directory) == 2
    assert local.run.status().restarts == 0
    assert shell.processes() == {}


@pytest.mark.slow
def test_frozen_agent_loses_its_workers_and_rejoins_when_it_thaws(shell: Shell) -> None:
    local = LocalRun(shell, script=STEADY, nodes="1..2")
    local.await_notes(1, nodes=2)
    frozen = shell.pid_of("--node-name node1")
    os.kill(frozen, signal.SIGSTOP)
    local.await_notes(2, nodes=1)
    assert len([line for line in shell.processes().values() if f"-u {STEADY}" in line]) == 1
    os.kill(frozen, signal.SIGCONT)
    local.await_notes(3, nodes=2)
    local.finish()
    assert check_proof(local.directory) == 3
    assert any(event["event"] == "fenced" for event in local.run.events())
    assert local.run.status().restarts == 0


@pytest.mark.slow
def test_the_next_agent_kills_workers_left_by_agent_and_guard(shell: Shell) -> None:
    job = {
        "run": {"name": "r", "directory": str(shell.directory / "runs")},
        "entrypoint": {"script": STEADY},
        "workers": {"per_node": 1, "stop_grace": 1},
        "rendezvous": {"last_call": 1, "lease": 2, "margin": 0.5, "poll": 0.05},
    }
    paths = prepare(resolve(job, []))

    def agent() -> "subprocess.Popen[str]":
        return shell.start("-m", "hpcelastic", "agent", "--run-dir", str(paths.root), "--node-name", "n0")

    first = agent()
    worker = shell.pid_of(f"-u {STEADY}")
    os.kill(shell.pid_of("guard_main.py n0@"), signal.SIGSTOP)  # so that it does not notice the death of the agent
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    os.kill(shell.pid_of("guard_main.py n0@"), signal.SIGKILL)
    assert worker in shell.processes()
    second = agent()
    eventually(lambda: worker not in shell.processes())
    eventually(lambda: len(list((paths.root / "proof").glob("2.*.json"))) == 1)
    (paths.root / "finish").touch()
    assert second.wait(TIMEOUT) == 0
    assert check_proof(paths.root) == 2


def test_a_round_has_whole_groups_of_nodes(shell: Shell) -> None:
    shell.write(
        {
            "train.py": "import os\nprint('world', os.environ['WORLD_SIZE'])\n",
            "job.yaml": "entrypoint: {script: train.py}\nnodes: {min: 2, max: 4, multiple: 2}\n"
            "workers: {per_node: 1, preload: []}\nlogs: {tee: both}\nrun: {name: groups}\n",
        }
    )
    done = shell.hpcelastic("run", "job.yaml", "--nodes", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("world 2") == 2
    state = read_state(FileBackend(RunPaths(shell.directory / "runs" / "groups")))
    assert (len(state.participants), len(state.standbys)) == (2, 1)
