"""Nodes on this machine."""

import errno
import os
from pathlib import Path

import pytest

from hpcelastic.api import jobs
from hpcelastic.api.jobs import LocalNodes, capacity, jobs_of, local_agents, record_job
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run
from hpcelastic.errors import SlurmError
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.queue import Capacity
from hpcelastic.storage.paths import RunPaths
from tests.api.jobs import WAITS, job
from tests.cli.shell import TIMEOUT, Shell, eventually


def processes_of(shell: Shell, node: str) -> list[int]:
    """Return agent, guard and workers of a node."""
    wanted = f"HPCELASTIC_AGENT={node}@".encode()
    found = []
    for pid, line in shell.processes().items():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if wanted in environ or f"--node-name {node}" in line or f"guard_main.py {node}@" in line:
            found.append(pid)
    return found


def stands(run: Run) -> list[tuple[str, str]]:
    status = run.status()
    return [(node.name, node.node_state) for node in status.nodes if status.phase == "running"]


def test_an_incomplete_record_is_ignored(shell: Shell) -> None:
    shell.write({"train.py": WAITS})
    paths = prepare(resolve(job(), []))
    paths.jobs.parent.mkdir()
    record_job(paths, "11")
    record_job(paths, "12", elements=3)
    content = paths.jobs.read_text()
    paths.jobs.write_text(content[:-1])
    assert jobs_of(paths) == ["11"]
    paths.jobs.write_text(content)
    assert jobs_of(paths) == ["11", "12"]


@pytest.fixture
def paths(shell: Shell) -> RunPaths:
    """A run without a job."""
    shell.write({"train.py": WAITS})
    paths = prepare(resolve(job(), []))
    paths.jobs.parent.mkdir()
    return paths


@pytest.mark.parametrize("line", ['{"job": "18", "elem', "[]", "{}", "null"])
def test_a_record_that_was_cut_on_a_full_disk_is_left_out(line: str, paths: RunPaths) -> None:
    record_job(paths, "17")
    with paths.jobs.open("a") as file:
        file.write(line)
    record_job(paths, "19")
    assert jobs_of(paths) == ["17", "19"]
    assert Run(paths.root).status().jobs == ("17", "19")


def test_the_nodes_of_a_run_of_another_user_are_counted(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = paths.root.stat().st_uid
    record_job(paths, "17")

    def call(*command: str) -> str:
        return "17 17 N/A RUNNING 4 0 None\n" if f"--user={owner}" in command else ""

    monkeypatch.setattr(scheduler, "_call", call)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert capacity(Run(paths.root).reader) == Capacity(4, 0, ())


def fails(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_job_that_cannot_be_recorded_is_cancelled(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[str] = []
    monkeypatch.setattr(os, "fsync", fails)
    monkeypatch.setattr(jobs, "cancel_jobs", cancelled.extend)
    with pytest.raises(OSError, match="No space left on device"):
        record_job(paths, "17")
    assert cancelled == ["17"]


def test_the_error_names_a_job_that_can_neither_be_recorded_nor_cancelled(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", fails)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SlurmError, match=r"No space left on device\) or cancelled \(scancel: not found.*: scancel 17$"):
        record_job(paths, "17")


@pytest.mark.slow
def test_a_node_is_killed_completely_and_started_again(shell: Shell) -> None:
    shell.write({"train.py": WAITS})
    paths = prepare(resolve(job(nodes="1..2"), []))
    nodes, run = LocalNodes(paths, 2), Run(paths.root)
    nodes.start()
    eventually(lambda: stands(run) == [("node0", "running"), ("node1", "running")])
    assert len(processes_of(shell, "node0")) == 3
    assert len(local_agents(run.reader.backend())) == 2
    nodes.kill_node(0)
    assert processes_of(shell, "node0") == []
    assert list(nodes.alive()) == [1]
    eventually(lambda: stands(run) == [("node1", "running")])
    nodes.start_node(0)
    eventually(lambda: len(stands(run)) == 2)
    shell.write({"finish": ""})
    assert nodes.wait(timeout=TIMEOUT) == {0: 0, 1: 0}
    assert run.status().phase == "succeeded"
    assert local_agents(run.reader.backend()) == []
    assert shell.processes() == {}


@pytest.mark.slow
def test_signals_reach_every_agent(shell: Shell) -> None:
    shell.write({"train.py": WAITS})
    paths = prepare(resolve(job(nodes=2), []))
    nodes = LocalNodes(paths, 2)
    nodes.start()
    eventually(lambda: len(list(Run(paths.root).logs())) == 2)
    nodes.signal(15)
    assert nodes.wait(timeout=TIMEOUT) == {0: 143, 1: 143}
    assert shell.processes() == {}


@pytest.mark.slow
def test_log_of_an_agent(shell: Shell) -> None:
    shell.write({"train.py": ""})
    paths = prepare(resolve(job(), []))
    nodes = LocalNodes(paths, 1)
    nodes.start()
    assert nodes.wait(timeout=TIMEOUT) == {0: 0}
    assert "the run has succeeded" in nodes.log(0).read_text()
    assert os.path.dirname(nodes.log(0)) == str(paths.root)
