"""A worker group starts, is watched and ends as a whole, with all processes that its workers have started."""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcelastic.agent import workers
from hpcelastic.agent.commands import command_line
from hpcelastic.agent.environment import RunFacts
from hpcelastic.agent.guard import Guard
from hpcelastic.agent.guard_main import boottime, kill_marked_processes
from hpcelastic.agent.settings import AgentSettings, Entrypoint, LogSettings
from hpcelastic.agent.worker import WorkerResources
from hpcelastic.agent.workers import WorkerGroup
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.storage.paths import RunPaths

PART = Assignment(1, 0, 1, 0, 2, 2, "127.0.0.1", 1, "", 0, 2)

Start = Callable[[str], WorkerGroup]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start two workers with a script. All their processes are killed at the end."""
    facts = RunFacts(RunPaths(tmp_path), "r", f"n@0-{os.getpid()}", 3)

    with Guard(facts.node) as guard:

        def started(script: str) -> WorkerGroup:
            (tmp_path / "work.py").write_text(f"import os, signal, subprocess, time\nme = os.environ['RANK']\n{script}")
            settings = AgentSettings(Entrypoint(script=str(tmp_path / "work.py")), logs=LogSettings("both"))
            group = WorkerGroup(PART, settings, facts, WorkerResources(guard))
            group.start(os.environ, boottime())
            return group

        try:
            yield started
        finally:
            kill_marked_processes(facts.node)


def wait_for(files: list[Path]) -> list[int]:
    """Return the process ids in the files once all exist."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        texts = [file.read_text() for file in files if file.exists()]
        if len(texts) == len(files) and all(text.endswith("\n") for text in texts):
            return [int(text) for text in texts]
        time.sleep(0.01)
    raise AssertionError(f"{files} did not appear")


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


CHILD = """
child = subprocess.Popen({command}, start_new_session={session})
open(os.path.join({directory!r}, 'child' + me), 'w').write(str(child.pid) + '\\n')
{then}
"""
HIDDEN = ["env", "-i", "/bin/sh", "-c", "trap '' TERM; sleep 1000"]
"""A process that ignores SIGTERM and does not have the agent's mark. Only its process group identifies it."""

CHILDREN = {
    "that the worker leaves behind": (HIDDEN, False, "time.sleep(1000)"),
    "of a worker that ignores SIGTERM": (
        HIDDEN,
        False,
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)",
    ),
    "in a session of its own": (["sleep", "1000"], True, "time.sleep(1000)"),
}


@pytest.mark.parametrize(("child", "session", "then"), CHILDREN.values(), ids=CHILDREN)
def test_stopping_leaves_no_child(start: Start, tmp_path: Path, child: list[str], session: bool, then: str) -> None:
    group = start(CHILD.format(command=child, session=session, directory=str(tmp_path), then=then))
    children = wait_for([tmp_path / "child0", tmp_path / "child1"])
    group.stop(grace=0.3)
    assert group.running == {}
    deadline = time.monotonic() + 10
    while not all(map(gone, children)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(map(gone, children))


def test_the_children_of_a_worker_that_ended_are_killed(start: Start, tmp_path: Path) -> None:
    group = start(CHILD.format(command=HIDDEN, session=False, directory=str(tmp_path), then="os._exit(3)"))
    children = wait_for([tmp_path / "child0", tmp_path / "child1"])
    while group.running:
        for pidfd in select.select(list(group.running), [], [], 30)[0]:
            assert group.reap(pidfd)[1] == 3
    deadline = time.monotonic() + 10
    while not all(map(gone, children)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(map(gone, children))


def test_the_grace_period_is_for_workers_that_use_it(start: Start, tmp_path: Path) -> None:
    group = start(f"""
def note(name):
    open(os.path.join({str(tmp_path)!r}, name + me), 'w').write('1\\n')

def end(*_):
    note('saved')
    os._exit(0)

signal.signal(signal.SIGTERM, end)
note('child')
time.sleep(1000)
""")
    wait_for([tmp_path / "child0", tmp_path / "child1"])
    group.stop(grace=30)
    assert wait_for([tmp_path / "saved0", tmp_path / "saved1"]) == [1, 1]


def test_a_killed_worker_that_does_not_end_is_not_awaited(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    group = start("time.sleep(1000)")
    pids = {worker.rank: worker.process.pid for worker in group.running.values()}
    monkeypatch.setattr(workers, "kill_group", lambda *_: None)  # like processes that wait for a hung filesystem
    monkeypatch.setattr(group, "_kill_marked", lambda *_: None)
    monkeypatch.setattr(workers, "_KILL_TIMEOUT", 0.1)
    assert {worker.rank: worker.process.pid for worker in group.stop(grace=0)} == pids
    assert group.running == {}
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids.values()):
        assert time.monotonic() < deadline, "it is not reaped after its end"
        time.sleep(0.01)


def test_without_logs_workers_share_the_output_of_the_agent(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").write_text("in the way")
    group = start("import os; os.write(1, f'hello from {me}\\n'.encode())")  # print makes several writes
    while group.running:
        for pidfd in select.select(list(group.running), [], [], 30)[0]:
            worker, exit_code = group.reap(pidfd)
            assert (worker.log, exit_code) == (None, 0)
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["hello from 0", "hello from 1"]
    assert err.startswith(f"no logs of round 1: {tmp_path / 'logs'}")


COMMANDS = {
    "script": (Entrypoint("a.py", args=("x", 1)), ["a.py", "x", "1"]),
    "module": (Entrypoint(module="a.b"), ["-m", "a.b"]),
    "macro": (Entrypoint("a.py", args=("--gpu=${local_rank}", "$$", "${rank}")), ["a.py", "--gpu=3", "$", "${rank}"]),
    "function": (Entrypoint(function="a:b", args=(1, "x")), ["-m", "hpcelastic.worker", "a:b", '[1, "x"]']),
}


@pytest.mark.parametrize(("entrypoint", "end"), COMMANDS.values(), ids=COMMANDS)
def test_command_of_a_worker(entrypoint: Entrypoint, end: list[str]) -> None:
    assert command_line(entrypoint, ("SIGUSR1", "SIGUSR2"), 3) == [
        "/bin/sh",
        "-c",
        'exec "$@"',
        "sh",
        sys.executable,
        "-u",
        *end,
    ]
    assert command_line(entrypoint, (), 3)[-len(end) :] == end


def test_command_of_a_program() -> None:
    entrypoint = Entrypoint(program="./work", args=(1, "${local_rank}"))
    assert command_line(entrypoint, ("SIGUSR1", "SIGUSR2"), 2)[3:] == ["sh", "./work", "1", "2"]


def test_user_signals_that_are_not_forwarded_do_not_kill(start: Start, tmp_path: Path) -> None:
    group = start(f"open(os.path.join({str(tmp_path)!r}, 'child' + me), 'w').write('1\\n')\ntime.sleep(1000)")
    wait_for([tmp_path / "child0", tmp_path / "child1"])
    for signum in (signal.SIGUSR1, signal.SIGUSR2):
        group.send(signum)
    assert select.select(list(group.running), [], [], 0.5)[0] == []
    group.stop(grace=0)
