"""Command lines of torchrun with real agents and workers: environment, output and end of the workers."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import TIMEOUT, Shell, eventually
from tests.ports import free_port

NOTES = """\
import json, os, sys
from pathlib import Path
note = {"argv": sys.argv[1:], "orig": sys.orig_argv, **os.environ}
Path(sys.argv[1], os.environ["RANK"] + ".json").write_text(json.dumps(note))
"""

SPEAKS = """\
import os, sys
me = os.environ["LOCAL_RANK"]
print("out of", me)
print("loss, or so, of", me)
print("err of", me, file=sys.stderr)
"""


@pytest.fixture
def notes(shell: Shell) -> Path:
    for name in [name for name in shell.environ if name.startswith(("OMP_", "TORCH", "PET_", "CUDA_"))]:
        del shell.environ[name]
    shell.write({"notes.py": NOTES, "speaks.py": SPEAKS})
    (shell.directory / "notes").mkdir()
    return shell.directory / "notes"


def finished(*agents: "subprocess.Popen[str]") -> tuple[str, str]:
    """Wait for a success of all. Return standard output and error of the last one."""
    for agent in agents:
        stdout, stderr = agent.communicate(timeout=2 * TIMEOUT)
        assert agent.returncode == 0, stderr
    return stdout, stderr


def by_rank(notes: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in notes.glob("*.json")]
    return sorted(found, key=lambda note: int(note["RANK"]))


@pytest.mark.parametrize("preload", ["", "json"], ids=["fresh", "forked"])
def test_nodes_differ_in_size_and_role(preload: str, notes: Path, shell: Shell) -> None:
    sizes, roles = ("1", "3", "2"), ("reader", "trainer", "reader")
    for name in ("PET_NPROC_PER_NODE", "PET_ROLE"):
        shell.environ[name] = "none of it"  # a flag precedes it
    passed_on = "--signals-to-handle=SIGTERM,SIGUSR1"
    script = (passed_on, "notes.py", "notes", "--rank=${local_rank}", "$$x${rank}")
    agents = []
    for i, (size, role) in enumerate(zip(sizes, roles, strict=True)):
        mine = (f"--node-name=n{i}", f"--node-rank={i}", f"--nproc-per-node={size}", f"--role={role}")
        agents.append(shell.agent("--nnodes=3", f"--preload={preload}", *mine, *script))
    finished(*agents)
    found = by_rank(notes)

    def column(name: str) -> list[str]:
        return [note[name] for note in found]

    assert column("RANK") == ["0", "1", "2", "3", "4", "5"]
    assert column("LOCAL_RANK") == ["0", "0", "1", "2", "0", "1"]
    assert column("LOCAL_WORLD_SIZE") == ["1", "3", "3", "3", "2", "2"]
    assert column("GROUP_RANK") == ["0", "1", "1", "1", "2", "2"]
    assert column("WORLD_SIZE") == ["6"] * 6
    assert column("ROLE_NAME") == ["reader", "trainer", "trainer", "trainer", "reader", "reader"]
    assert column("ROLE_RANK") == ["0", "0", "1", "2", "1", "2"]
    assert column("ROLE_WORLD_SIZE") == ["3"] * 6
    assert column("TORCHELASTIC_SIGNALS_TO_HANDLE") == ["SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"] * 6
    for note in found:
        assert note["argv"] == ["notes", f"--rank={note['LOCAL_RANK']}", "$x${rank}"]
        assert note["orig"] == [sys.executable, "-u", "notes.py", *note["argv"]]


@pytest.mark.slow
def test_output_by_local_rank(notes: Path, shell: Shell) -> None:
    flags = ("--nproc-per-node=4", "--preload=", "-r", "0:1,2:3", "--tee=1:3,3:3", "--local-ranks-filter=0,1")
    flags += (
        "--duplicate-stdout-filters=nothing,loss,, or",
        "--duplicate-stderr-filters",
        "err of 3",
        "--log-dir=logs",
    )
    prefix = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name} ${local_rank}/${rank}> "}
    agent = shell.agent("--node-name=n", "--role=t", *flags, "speaks.py", environ=prefix)
    stdout, stderr = finished(agent)
    assert sorted(stdout.splitlines()) == ["<t 1/1> loss, or so, of 1", "<t 1/1> out of 1"]
    assert sorted(line for line in stderr.splitlines() if "err of" in line) == ["<t 1/1> err of 1", "err of 0"]
    logs = shell.directory / "logs/r/round-0001"
    kept = {path.name: path.read_text() for path in logs.iterdir()}
    assert kept.keys() == {
        "rank-00000.out", "rank-00001.out", "rank-00001.err", "rank-00002.out", "rank-00002.err", "rank-00003.out",
        "rank-00003.err", "match-n.out", "match-n.err",
    }  # fmt: skip
    assert kept["rank-00002.out"] == "out of 2\nloss, or so, of 2\n"
    assert sorted(kept["match-n.out"].splitlines()) == [f"<t {i}/{i}> loss, or so, of {i}" for i in range(4)]
    assert kept["match-n.err"] == "<t 3/3> err of 3\n"
    assert "[1.2] err of 2" in shell.hpcelastic("logs", "r").stdout


def test_a_program_on_a_single_node(notes: Path, shell: Shell) -> None:
    """--no-python, --standalone, a default in the environment, and the report of a failure."""
    shell.write({"work.sh": '#!/bin/sh\necho "$0 $1 $RANK of $WORLD_SIZE, $ROLE_NAME"; exit "$2"\n'})
    (shell.directory / "work.sh").chmod(0o755)
    flags = ("-m", "hpcelastic", "agent", "--standalone", "--rdzv-endpoint=nowhere:29400", "--no-python", "-r", "1")
    environ = {"PET_NPROC_PER_NODE": "2", "TMPDIR": str(shell.directory)}
    stdout, stderr = finished(shell.start(*flags, "./work.sh", "${local_rank}", "0", environ=environ))
    assert stdout == ""
    (kept,) = shell.directory.glob("hpcelastic-*")
    assert f"this run is stored in {kept}" in stderr
    assert sorted(path.read_text() for path in kept.glob("*/logs/round-0001/*.out")) == [
        "./work.sh 0 0 of 2, default\n",
        "./work.sh 1 1 of 2, default\n",
    ]
    failed = shell.start(*flags, "./work.sh", "x", "3", environ=environ)
    _, stderr = failed.communicate(timeout=2 * TIMEOUT)
    assert failed.returncode == 1
    assert "exit status 3" in stderr


FAILS = """\
import json, os, sys
error = {"message": "ValueError: diverged", "extraInfo": {"py_callstack": "", "timestamp": "1"}}
if sys.argv[1:]:
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": error}, file)
sys.exit(3)
"""
"""A worker that fails. With an argument it reports the reason, like ``@record``."""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["fails.py", "tell"], "ValueError: diverged", id="the report of the worker"),
        pytest.param(["fails.py"], "exit status 3", id="the exit status of the worker"),
        pytest.param(["nowhere.py"], "ConfigError: .*nowhere.py: no such script", id="the error of the command line"),
    ],
)
def test_the_launcher_finds_the_root_cause(words: list[str], message: str, shell: Shell) -> None:
    shell.write({"fails.py": FAILS})
    outer = shell.directory / "outer.json"
    agent = shell.agent("--preload=", *words, environ={"TORCHELASTIC_ERROR_FILE": str(outer)})
    agent.communicate(timeout=2 * TIMEOUT)
    assert agent.returncode != 0
    report = json.loads(outer.read_text())["message"]
    assert re.match(message, report["message"])
    assert report.get("errorCode", 3) == 3


def test_each_worker_sees_its_own_gpu(notes: Path, shell: Shell) -> None:
    given = {"CUDA_VISIBLE_DEVICES": "5, GPU-ab"}
    flags = ("--virtual-local-rank", "--preload=json", "--no-health-check")
    finished(shell.agent("--nproc-per-node=2", *flags, "notes.py", "notes", environ=given))
    seen = [
        (note["LOCAL_RANK"], note["HPCELASTIC_LOCAL_RANK"], note["CUDA_VISIBLE_DEVICES"]) for note in by_rank(notes)
    ]
    assert seen == [("0", "0", "5"), ("0", "1", "GPU-ab")]


def test_signals_reach_workers_with_their_grace_period(notes: Path, shell: Shell) -> None:
    script = str(Path(__file__).parents[1] / "e2e/scripts/notes_signals.py")
    listed = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
    agent = shell.agent(f"--signals-to-handle={listed}", "--shutdown-timeout=1", "--preload=", script, str(notes))
    eventually(lambda: "0.ready" in os.listdir(notes))
    agent.send_signal(signal.SIGUSR1)
    eventually(lambda: "0.SIGUSR1" in os.listdir(notes))
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(TIMEOUT) == 128 + signal.SIGTERM
    assert "0.SIGTERM" in os.listdir(notes)
    assert shell.processes() == {}


OWN_PORT = """\
import os, sys
import torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=rank, world_size=size)
dist.barrier()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(rank)
"""
"""Workers that use their own port in each round. The first of them fails."""


def test_workers_use_the_port_of_the_command_line(shell: Shell) -> None:
    shell.write({"own_port.py": OWN_PORT})
    port = str(free_port())
    flags = ("--master-port", port, "--nproc-per-node=2", "--max-restarts=1")
    _, stderr = finished(shell.agent(*flags, "own_port.py", port, environ={"GLOO_SOCKET_IFNAME": "lo"}))
    assert [line.rpartition(":")[2] for line in stderr.splitlines() if "store at" in line] == [port, port]
