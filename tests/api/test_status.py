"""The status of a run's nodes."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.api.status import NodeStatus, read_status
from hpcelastic.backends.connect import RunReader
from hpcelastic.backends.files import FileBackend
from hpcelastic.cli.status import lines
from hpcelastic.protocol.decide import Decision
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Member, NodeState, Phase, participants_of
from hpcelastic.rendezvous.run import open_run, read_state, steer_run
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths

OLD = Member("n1@0-aa", NodeState.RUNNING, 1, 1, "10.0.0.1", 1, job="7.0")
NEW = replace(OLD, node="n1@0-bb", dead=("n1@0-aa", "n2@0-cc"))
OTHER = replace(OLD, node="n2@0-cc")


@pytest.mark.parametrize(
    ("before", "restarts"),
    [
        pytest.param(OLD, 1, id="died"),
        pytest.param(replace(OLD, node_state=NodeState.LEFT), 1, id="ended by an internal error"),
        pytest.param(replace(OLD, job="6.0"), 0, id="of another job"),
        pytest.param(replace(OLD, job="7.1"), 0, id="of an earlier start of the job"),
    ],
)
def test_agents_that_were_started_again_are_counted(tmp_path: Path, before: Member, restarts: int) -> None:
    paths = RunPaths(tmp_path)
    for directory in (paths.register, paths.leases, paths.incidents):
        files.make_directory(directory)
    backend = FileBackend(paths)
    open_run(backend, "r", Settings(), NEW.node)
    running = replace(read_state(backend), phase=Phase.RUNNING, round=1, participants=participants_of([NEW]))
    steer_run(backend, NEW.node, lambda state: Decision(running, "for the test"))
    for member in (before, OTHER, NEW):
        backend.lease(member.node).renew(member)
    status = read_status(RunReader(paths))
    assert status.nodes == (NodeStatus("n1", "running", "0", restarts),), "nodes known to be dead are left out"
    assert ("agent restarts 1" in "\n".join(lines(status, {}))) == bool(restarts)


def running_on(paths: RunPaths, count: int) -> None:
    """Make a run whose round 1 runs on ``count`` nodes of SLURM, with two workers on the first one."""
    for directory in (paths.register, paths.leases, paths.incidents):
        files.make_directory(directory)
    backend, members = FileBackend(paths), [replace(OLD, node=f"n{i:03}@0-aa", job_nodes=count) for i in range(count)]
    members[0] = replace(members[0], local_world_size=2)
    open_run(backend, "r", Settings(), members[0].node)
    round_1 = participants_of(members)
    running = replace(read_state(backend), phase=Phase.RUNNING, round=1, participants=round_1)
    steer_run(backend, "n", lambda state: Decision(running, "for the test"))
    for member in members:
        backend.lease(member.node).renew(member)


def test_each_node_is_shown_with_its_ranks(tmp_path: Path) -> None:
    running_on(RunPaths(tmp_path), 3)
    assert read_status(RunReader(RunPaths(tmp_path))).nodes == (
        NodeStatus("n000", "running", "0..1"),
        NodeStatus("n001", "running", "2"),
        NodeStatus("n002", "running", "3"),
    )


def test_the_leases_of_a_run_that_goes_on_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running_on(RunPaths(tmp_path), 100)
    paths, requests = RunPaths(tmp_path), list[Path]()
    for name in ("stat", "read_bytes"):
        original = getattr(Path, name)
        monkeypatch.setattr(Path, name, lambda path, *args, f=original: requests.append(path) or f(path, *args))
    status = read_status(RunReader(paths))
    assert {node.node_state for node in status.nodes} == {"running"} and len(status.nodes) == 100
    assert requests and not [path for path in requests if path.parent == paths.leases]


def test_nodes_are_silent_if_no_lease_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running_on(RunPaths(tmp_path), 2)
    later = time.time() + 1000.0
    monkeypatch.setattr(time, "time", lambda: later)
    assert {node.node_state for node in read_status(RunReader(RunPaths(tmp_path))).nodes} == {"silent"}


@pytest.mark.parametrize(
    ("ranks", "starting", "shown"),
    [
        ("0..7", 0, "ranks 0..7"),
        ("0..6", 1, "ranks 0..6, 1 worker starting"),
        ("", 8, "8 workers starting"),
        ("", 0, ""),
    ],
)
def test_workers_that_are_starting_are_shown(ranks: str, starting: int, shown: str) -> None:
    assert NodeStatus("n1", "running", ranks, starting=starting).part == shown
