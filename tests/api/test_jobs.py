"""Nodes on this machine."""

import os
from pathlib import Path

import pytest

from hpcelastic.api.jobs import LocalNodes, jobs_of, local_agents, record_job
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run
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
