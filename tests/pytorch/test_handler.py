"""Side effects of a rendezvous handler on its process: threads, environment and child processes."""

import gc
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters

from hpcelastic.agent.guard_main import MARKER
from hpcelastic.errors import StoreError
from hpcelastic.protocol.state import NodeState
from hpcelastic.pytorch import torchrun
from hpcelastic.pytorch.torchrun import FileRendezvousHandler, create_handler
from hpcelastic.storage.leases import read_leases
from hpcelastic.storage.paths import RunPaths
from tests.cli.shell import eventually
from tests.pytorch.torch_agents import QUICK


def handler_of(directory: Path) -> FileRendezvousHandler:
    return create_handler(RendezvousParameters("hpcelastic", str(directory), "r", 1, 1, "127.0.0.1", **QUICK))


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[FileRendezvousHandler]:
    handler = handler_of(tmp_path)
    yield handler
    handler.shutdown()


@pytest.fixture
def children() -> Iterator[Any]:
    """Start programs that sleep. Those that are left at the end are killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(["sleep", "1000"]))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.wait()


def ours() -> dict[str, str]:
    """Return the workers' variables in this process's environment."""
    return {name: value for name, value in os.environ.items() if name.startswith("HPCELASTIC_")}


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()} & {"session", "rendezvous"}


def node_states(directory: Path) -> list[NodeState]:
    return [lease.member.node_state for lease in read_leases(RunPaths(directory / "r").leases).values()]


def test_only_workers_are_killed_at_the_end_of_a_round(handler: FileRendezvousHandler, children: Any) -> None:
    handler.next_rendezvous()
    worker = children()
    assert handler.num_nodes_waiting() == 0
    monitor = children()
    handler.next_rendezvous()
    assert worker.wait(10) == -signal.SIGKILL
    assert monitor.poll() is None


def test_the_environment_of_workers_is_set_only_while_they_start(handler: FileRendezvousHandler) -> None:
    before = ours()
    handler.next_rendezvous()
    assert (os.environ[MARKER], os.environ["HPCELASTIC_ROUND"]) != ("", "0")
    handler.num_nodes_waiting()
    assert ours() == before
    handler.next_rendezvous()
    handler.shutdown()
    assert ours() == before


def test_the_resource_tracker_of_multiprocessing_is_no_worker(
    handler: FileRendezvousHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = resource_tracker.ResourceTracker()
    monkeypatch.setattr(resource_tracker, "ensure_running", tracker.ensure_running)
    handler.next_rendezvous()
    tracker.ensure_running()
    pid = tracker._pid  # type: ignore[attr-defined]  # it has no public name
    assert MARKER.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    os.close(tracker.getfd())
    os.waitpid(pid, 0)


def test_a_handler_leaves_a_run_that_it_cannot_end(
    tmp_path: Path, handler: FileRendezvousHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise StoreError("the disk is away")

    handler.next_rendezvous()
    assert threads()
    with monkeypatch.context() as patched:
        patched.setattr(torchrun, "fail_run", broken)
        assert not handler.shutdown()
    assert (threads(), node_states(tmp_path)) == (set(), [NodeState.LEFT])


def test_a_handler_that_is_dropped_leaves_its_run(tmp_path: Path) -> None:
    handler = handler_of(tmp_path)
    handler.next_rendezvous()
    assert threads()
    del handler
    gc.collect()
    eventually(lambda: not threads())
    assert node_states(tmp_path) == [NodeState.LEFT]
