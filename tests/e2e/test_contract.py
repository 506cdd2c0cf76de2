"""The interface of workers: torchrun's complete contract, and torchrun's command line."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from tests.cli.shell import TIMEOUT, Shell, eventually, shell_in

SCRIPTS = Path(__file__).with_name("scripts")
DUMP = str(SCRIPTS / "dump_environment.py")
UNMODIFIED = str(SCRIPTS / "unmodified.py")
TORCHRUN = ("-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        for name in [name for name in made.environ if name.startswith(("OMP_", "TORCH", "NCCL_", "MASTER_"))]:
            del made.environ[name]
        (tmp_path / "notes").mkdir()
        yield made


def dumped(shell: Shell, directory: str = "notes") -> list[dict[str, str]]:
    """Return by rank the environments that `dump_environment.py` has written."""
    notes = sorted((shell.directory / directory).glob("*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text()) for path in notes]


def finish(process: Any) -> tuple[str, str]:
    """Wait for a success. Return standard output and error."""
    stdout, stderr = process.communicate(timeout=2 * TIMEOUT)
    assert process.returncode == 0, stderr
    return stdout, stderr


# The environment


@pytest.mark.slow
def test_every_variable_of_torchrun_is_set(shell: Shell) -> None:
    (shell.directory / "theirs").mkdir()
    done = shell.python(*TORCHRUN, "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", DUMP, "theirs")
    assert done.returncode == 0, done.stderr
    finish(shell.agent("--nnodes=1", "--nproc-per-node=2", DUMP, "notes"))
    theirs, ours = dumped(shell, "theirs"), dumped(shell)
    assert len(theirs) == len(ours) == 2
    for their, our in zip(theirs, ours, strict=True):
        assert their.keys() <= our.keys()
        same = {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
        same |= {"GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"}
        same |= {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
        same |= {"TORCHELASTIC_USE_AGENT_STORE"}
        assert {name: their.get(name) for name in same} == {name: our.get(name) for name in same}


@pytest.mark.slow
def test_ranks_of_two_nodes_agree(shell: Shell) -> None:
    flags = ("--nnodes=2", "--nproc-per-node=2", "--max-restarts=3")
    agents = [shell.agent("--node-name", f"n{i}", "--node-rank", f"{i}", *flags, DUMP, "notes") for i in (1, 0)]
    for agent in agents:
        finish(agent)
    ranks = dumped(shell)

    def column(name: str) -> list[str]:
        return [rank[name] for rank in ranks]

    for name in ("RANK", "ROLE_RANK"):
        assert column(name) == ["0", "1", "2", "3"]
    assert column("LOCAL_RANK") == ["0", "1", "0", "1"]
    assert column("GROUP_RANK") == ["0", "0", "1", "1"]
    assert column("HPCELASTIC_NODE") == ["n0", "n0", "n1", "n1"]
    for name, value in {
        "WORLD_SIZE": "4",
        "ROLE_WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": "r",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "HPCELASTIC_ROUND": "1",
        "HPCELASTIC_TOKEN": "1",
        "HPCELASTIC_RUN_ID": "r",
        "HPCELASTIC_RUN_DIR": str(shell.directory / "runs" / "r"),
    }.items():
        assert column(name) == [value] * 4, name
    assert len(set(column("MASTER_PORT"))) == 1
    assert len(set(column("TORCHELASTIC_ERROR_FILE"))) == 4
    assert all(Path(file).parent.is_dir() for file in column("TORCHELASTIC_ERROR_FILE"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "given", "expected"),
    [
        pytest.param(1, {}, (None, "1"), id="one-worker"),
        pytest.param(2, {}, ("1", "1"), id="two-workers"),
        pytest.param(
            2, {"OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, ("3", "0"), id="set-by-the-user"
        ),
    ],
)
def test_defaults_of_openmp_and_nccl(
    workers: int, given: dict[str, str], expected: tuple[str | None, str], shell: Shell
) -> None:
    finish(shell.agent(f"--nproc-per-node={workers}", DUMP, "notes", environ=given))
    for rank in dumped(shell):
        assert (rank.get("OMP_NUM_THREADS"), rank["TORCH_NCCL_ASYNC_ERROR_HANDLING"]) == expected


# Unmodified scripts


ABORTED_AT_EXIT = "terminate called without an active exception"
"""Errors that threads of torch sometimes cause at the exit of a process on a busy machine, under any launcher."""


PRINTED = re.compile(r"rank \d of 2: sum 3, weight -?\d+\.\d{6}")  # the lines of two ranks may overlap


def printed(start: "Callable[[int], subprocess.Popen[str]]") -> list[str]:
    """Return the output of ranks of which none is aborted at its exit. Aborted attempts are repeated."""
    for attempt in range(3):
        process = start(attempt)
        stdout, stderr = process.communicate(timeout=2 * TIMEOUT)
        if process.returncode == 0:
            return sorted(PRINTED.findall(stdout))
        assert ABORTED_AT_EXIT in stderr, stderr
    pytest.fail("torch aborted each time")


@pytest.mark.slow
def test_unmodified_script_gives_the_same_as_under_torchrun(shell: Shell) -> None:
    script = (UNMODIFIED, "--steps=4")
    flags = ("--rdzv-backend=c10d", "--nnodes=1", "--nproc_per_node=2")
    theirs = printed(lambda attempt: shell.start(*TORCHRUN, *script))
    ours = printed(lambda attempt: shell.agent(f"--rdzv-id=r{attempt}", *flags, *script))
    assert len(ours) == 2
    assert ours == theirs


@pytest.mark.slow
def test_recorded_exception_is_shown_with_rank_node_and_log(shell: Shell) -> None:
    flags = ("--nproc-per-node=2", "--node-name=n0", "--redirects=3")
    agent = shell.agent(*flags, UNMODIFIED, "--fail-at=1")
    _, stderr = agent.communicate(timeout=2 * TIMEOUT)
    assert agent.returncode == 1
    log = shell.directory / "runs/r/logs/round-0001/rank-00001.err"
    message = "RuntimeError: the data of step 1 is broken"
    assert f"root cause: rank 1 on n0 in round 1: {message}\n  log: {log}\n  | Traceback" in stderr
    assert f'File "{UNMODIFIED}", line' in stderr
    assert message in log.read_text()
    status = shell.hpcelastic("status", "r").stdout
    assert f"rank 1 on n0 in round 1: {message}; log: {log}" in status


@pytest.mark.slow
def test_module_runs_with_its_arguments(shell: Shell) -> None:
    shell.write({"package/__init__.py": "", "package/job.py": "import sys\nprint(__name__, sys.argv[1:])\n"})
    stdout, _ = finish(shell.agent("-m", "package.job", "--lr", "0.1", "-m", "--nnodes"))
    assert stdout == "__main__ ['--lr', '0.1', '-m', '--nnodes']\n"


@pytest.mark.slow
def test_a_run_survives_a_crash_and_each_round_has_its_own_store_port(shell: Shell) -> None:
    flags = ("--nnodes=2", "--nproc-per-node=2", "--max-restarts=1")
    meet = str(SCRIPTS / "meet.py")
    agents = [shell.agent("--node-name", f"n{i}", *flags, meet, "notes") for i in (0, 1)]
    for agent in agents:
        finish(agent)
    notes = [json.loads(path.read_text()) for path in (shell.directory / "notes").iterdir()]
    rounds = {number: [note for note in notes if note["HPCELASTIC_ROUND"] == number] for number in ("1", "2")}
    assert {note["RANK"] for note in rounds["2"]} == {"0", "1", "2", "3"}
    assert {note["TORCHELASTIC_RESTART_COUNT"] for note in rounds["2"]} == {"1"}
    ports = {number: {note["MASTER_PORT"] for note in round} for number, round in rounds.items()}
    assert [len(ports["1"]), len(ports["2"])] == [1, 1]
    assert ports["1"] != ports["2"]
    assert "restarts   1 of 1" in shell.hpcelastic("status", "r").stdout


# Output

SAYS = "import sys; print('to stdout'); print('to stderr', file=sys.stderr)\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "shown", "kept"),
    [
        pytest.param([], {"out": "to stdout\n", "err": "to stderr\n"}, set(), id="all-shown"),
        pytest.param(["--redirects", "1"], {"out": "", "err": "to stderr\n"}, {"out"}, id="redirects-1"),
        pytest.param(["-r", "err"], {"out": "to stdout\n", "err": ""}, {"err"}, id="r-err"),
        pytest.param(["--redirects=3"], {"out": "", "err": ""}, {"out", "err"}, id="redirects-3"),
        pytest.param(["--tee", "3"], {"out": "[0] to stdout\n", "err": "[0] to stderr\n"}, {"out", "err"}, id="tee-3"),
        pytest.param(
            ["-t", "out", "-r", "both"], {"out": "[0] to stdout\n", "err": ""}, {"out", "err"}, id="t-out-r-both"
        ),
    ],
)
def test_redirects_and_tee(flags: list[str], shown: dict[str, str], kept: set[str], shell: Shell) -> None:
    shell.write({"says.py": SAYS})
    stdout, stderr = finish(shell.agent(*flags, "says.py"))
    assert stdout == shown["out"]
    assert "".join(re.findall(r"^.*to stderr\n", stderr, re.MULTILINE)) == shown["err"]
    logs = list((shell.directory / "runs/r/logs/round-0001").iterdir())
    assert {log.name for log in logs} == {f"rank-00000.{stream}" for stream in kept}
    assert {log.read_text() for log in logs} == {f"to std{stream}\n" for stream in kept}


# Signals


class Node:
    """An agent with two workers that record their signals."""

    def __init__(self, shell: Shell, *manners: str, **workers: Any) -> None:
        self.notes = shell.directory / "notes"
        job = {
            "run": {"name": "r", "directory": str(shell.directory / "runs")},
            "entrypoint": {"script": str(SCRIPTS / "notes_signals.py"), "args": [str(self.notes), *manners]},
            "workers": {"per_node": 2, **workers},
            "rendezvous": {"last_call": 1, "lease": 2, "margin": 0.5, "poll": 0.05},
            "restarts": {"max": 0},
        }
        paths = prepare(resolve(job, []))
        self.agent = shell.start("-m", "hpcelastic", "agent", "--run-dir", str(paths.root))
        eventually(lambda: {"0.ready", "1.ready"} <= self.noted())

    def noted(self) -> set[str]:
        return set(os.listdir(self.notes))


@pytest.mark.slow
def test_sigterm_gives_workers_time_to_save_and_leaves_no_grandchild(shell: Shell) -> None:
    node = Node(shell, "bye", "family", stop_grace=20)
    eventually(lambda: sum("sleep 60" in line for line in shell.processes().values()) == 4)  # exec hides a process
    node.agent.send_signal(signal.SIGTERM)
    assert node.agent.wait(TIMEOUT) == 128 + signal.SIGTERM
    assert {"0.SIGTERM", "1.SIGTERM", "0.saved", "1.saved"} <= node.noted()
    assert shell.processes() == {}


@pytest.mark.slow
def test_worker_that_does_not_end_on_sigterm_is_killed_after_its_grace(shell: Shell) -> None:
    node = Node(shell, "family", stop_grace=0.5)
    node.agent.send_signal(signal.SIGTERM)
    assert node.agent.wait(TIMEOUT) == 128 + signal.SIGTERM
    assert {"0.SIGTERM", "1.SIGTERM"} <= node.noted()
    assert shell.processes() == {}


@pytest.mark.slow
def test_a_second_sigterm_ends_the_grace_period(shell: Shell) -> None:
    node = Node(shell, stop_grace=600)
    node.agent.send_signal(signal.SIGTERM)
    eventually(lambda: {"0.SIGTERM", "1.SIGTERM"} <= node.noted())
    node.agent.send_signal(signal.SIGTERM)
    assert node.agent.wait(TIMEOUT) == 128 + signal.SIGTERM
    assert shell.processes() == {}


@pytest.mark.slow
def test_configured_signals_are_forwarded_and_others_are_not(shell: Shell) -> None:
    node = Node(shell, forward_signals=["SIGUSR1"])
    node.agent.send_signal(signal.SIGUSR2)
    node.agent.send_signal(signal.SIGUSR1)
    eventually(lambda: {"0.SIGUSR1", "1.SIGUSR1"} <= node.noted())
    (node.notes / "finish").touch()
    finish(node.agent)
    assert not any("SIGUSR2" in name for name in node.noted())


@pytest.mark.slow
def test_an_agent_under_nohup_survives_a_hangup(shell: Shell) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        node = Node(shell)
    finally:
        signal.signal(signal.SIGHUP, before)
    node.agent.send_signal(signal.SIGHUP)
    node.agent.send_signal(signal.SIGTERM)
    assert node.agent.wait(TIMEOUT) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_agent_imports_no_torch(shell: Shell) -> None:
    shell.write({"quiet.py": ""})
    code = "import sys; from hpcelastic.cli import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    agent = shell.start("-c", code, "agent", "--rdzv-endpoint", "./runs", "quiet.py")
    assert finish(agent)[0] == "False\n"
