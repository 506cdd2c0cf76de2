"""Side effects of a rendezvous handler: threads, environment and child processes of its process, and torch's events."""

import errno
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError

from hpcelastic.agent import nonblocking_output
from hpcelastic.agent.guard import Guard
from hpcelastic.agent.guard_main import MARKER
from hpcelastic.api.steering import drain
from hpcelastic.backends.connect import RunReader
from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import StoreError
from hpcelastic.protocol.decide import checkpoint
from hpcelastic.protocol.state import NodeState, Phase
from hpcelastic.pytorch import torchrun
from hpcelastic.pytorch.session import ExternalAgentSession
from hpcelastic.pytorch.torchrun import FileRendezvousHandler
from hpcelastic.rendezvous.run import read_state, steer_run
from hpcelastic.storage.leases import read_leases
from hpcelastic.storage.paths import RunPaths
from tests.cli.shell import eventually
from tests.pytorch.recorded import Register
from tests.pytorch.torch_agents import handler_of


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


def test_only_forks_that_are_workers_are_killed_at_the_end_of_a_round(handler: FileRendezvousHandler) -> None:
    guard = handler_guard(handler)
    first, second = forked(), forked()
    eventually(lambda: handler.num_nodes_waiting() == 0 and set(guard._groups) == {first.pid, second.pid})
    monitor = forked()
    second.kill()
    second.join(10)
    assert handler.num_nodes_waiting() == 0
    assert set(guard._groups) == {first.pid}, "the guard does not watch a group that has ended"
    handler.next_rendezvous()
    first.join(10)
    assert (first.exitcode, monitor.is_alive()) == (-signal.SIGKILL, True)
    monitor.kill()


def forked() -> multiprocessing.process.BaseProcess:
    """Return a fork of this process that sleeps."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,), daemon=True)
    process.start()
    return process


def handler_guard(handler: FileRendezvousHandler) -> Guard:
    """Return the guard of a handler that has its part of a round."""
    handler.next_rendezvous()
    assert handler._session is not None
    return handler._session._session.guard


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
    eventually(lambda: not threads())
    assert node_states(tmp_path) == [NodeState.LEFT]


@pytest.mark.parametrize(
    ("error", "phase"),
    [
        pytest.param(KeyboardInterrupt(), Phase.JOINING, id="SIGINT"),
        pytest.param(SignalException("got SIGTERM", signal.SIGTERM), Phase.JOINING, id="SIGTERM"),
        pytest.param(RuntimeError("a defect"), Phase.CLOSED, id="another error"),
    ],
)
def test_a_signal_to_the_agent_does_not_end_the_run(tmp_path: Path, error: BaseException, phase: Phase) -> None:
    handler = handler_of(tmp_path, nodes=2, join_timeout=0.2)
    with pytest.raises(RendezvousTimeoutError):
        handler.next_rendezvous()
    with pytest.raises(type(error)):
        try:
            raise error
        finally:  # as in torch's launch_agent
            handler.shutdown()
    assert read_state(FileBackend(RunPaths(tmp_path / "r"))).phase is phase
    assert node_states(tmp_path) == [NodeState.LEFT]


def test_a_handler_that_is_dropped_leaves_its_run(tmp_path: Path) -> None:
    handler = handler_of(tmp_path)
    handler.next_rendezvous()
    assert threads()
    del handler
    gc.collect()
    eventually(lambda: not threads())
    assert node_states(tmp_path) == [NodeState.LEFT]


def full(_fd: int, _data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_line_that_cannot_be_printed_does_not_end_the_participation(
    tmp_path: Path, handler: FileRendezvousHandler, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nonblocking_output, "_DRAIN_TIMEOUT", 0.0)
    monkeypatch.setattr(nonblocking_output, "os", SimpleNamespace(write=full))
    monkeypatch.setattr(sys.stderr, "write", lambda _: full(2, b""))
    handler.next_rendezvous()
    steer_run(FileBackend(RunPaths(tmp_path / "r")), "test", checkpoint)  # the end of the round is reported
    eventually(handler.num_nodes_waiting)
    assert handler.next_rendezvous().rank == 0
    assert read_state(FileBackend(RunPaths(tmp_path / "r"))).round == 2


# torch's events


def test_each_step_of_a_handler_is_recorded(tmp_path: Path, registered: Register) -> None:
    kept = registered("dynamic_rendezvous")
    handler = handler_of(tmp_path)
    store = handler.next_rendezvous().bootstrap_store_info
    handler.shutdown()
    handler.shutdown()  # there is nothing left to do
    assert kept.states == ["INIT", "RUNNING", "RUNNING", "SUCCEEDED"]
    assert [event["rank"] for event in kept.events] == [None, None, 0, None]
    assert {(event["run_id"], event["pid"]) for event in kept.events} == {("r", os.getpid())}
    assert store is not None
    joined = kept.events[2]
    assert joined["master_endpoint"] == f"{store.master_addr}:{store.master_port}"
    assert joined["name"].endswith(":FileRendezvousHandler.next_rendezvous")
    assert "has joined round 1 of the rendezvous 'r'" in joined["message"]


def test_a_round_that_forms_before_the_agent_asks_for_it_is_used(
    tmp_path: Path, registered: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunPaths(tmp_path / "r")

    def slow(_: object) -> None:
        eventually(lambda: read_state(FileBackend(run)).phase is not Phase.JOINING)

    monkeypatch.setattr(registered("dynamic_rendezvous"), "emit", slow)
    handler = handler_of(tmp_path)
    assert handler.next_rendezvous().rank == 0
    assert (handler.num_nodes_waiting(), read_state(FileBackend(run)).round) == (0, 1)
    handler.shutdown()


def test_a_round_that_forms_while_the_agent_asks_for_it_is_used(
    handler: FileRendezvousHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = ExternalAgentSession._kill_leftovers

    def slow(session: ExternalAgentSession) -> None:
        """The agent finds no round, and continues only after one has formed."""
        eventually(lambda: session.part is not None)
        kill(session)

    monkeypatch.setattr(ExternalAgentSession, "_kill_leftovers", slow)
    ranks: list[int] = []
    threading.Thread(target=lambda: ranks.append(handler.next_rendezvous().rank), daemon=True).start()
    assert eventually(lambda: ranks) == [0]


def test_a_time_out_is_recorded_as_a_failure(tmp_path: Path, registered: Register) -> None:
    kept = registered("dynamic_rendezvous")
    handler = handler_of(tmp_path, nodes=2, join_timeout=0.2)
    with pytest.raises(RendezvousTimeoutError):
        handler.next_rendezvous()
    handler.shutdown()
    assert kept.states == ["INIT", "RUNNING", "FAILED", "SUCCEEDED"]
    assert kept.events[2]["message"].startswith("RendezvousTimeoutError: ")
    assert "RendezvousTimeoutError" in kept.events[2]["error_trace"]


def test_the_end_of_a_run_is_recorded_and_a_later_attempt_as_a_failure(tmp_path: Path, registered: Register) -> None:
    kept = registered("dynamic_rendezvous")
    handler = handler_of(tmp_path)
    handler.set_closed()
    assert kept.states == ["INIT", "SUCCEEDED"]
    with pytest.raises(RendezvousClosedError):
        handler.next_rendezvous()
    assert kept.states[2:] == ["RUNNING", "FAILED"]
    handler.shutdown()


def test_a_wrong_option_is_recorded_as_a_failure(tmp_path: Path, registered: Register) -> None:
    kept = registered("dynamic_rendezvous")
    with pytest.raises(ValueError, match="lease"):
        handler_of(tmp_path, lease="long")
    assert kept.states == ["FAILED"]


def test_a_node_that_must_leave_has_not_failed(tmp_path: Path, registered: Register) -> None:
    kept = registered("dynamic_rendezvous")
    handler = handler_of(tmp_path)
    handler.next_rendezvous()
    (member,) = (lease.member for lease in read_leases(RunPaths(tmp_path / "r").leases).values())
    drain(RunReader(RunPaths(tmp_path / "r")), [member.name])
    eventually(handler.num_nodes_waiting)
    with pytest.raises(SystemExit):
        handler.next_rendezvous()
    handler.shutdown()
    assert "FAILED" not in kept.states


def test_a_broken_handler_of_events_has_no_effect(
    handler: FileRendezvousHandler, registered: Register, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def broken(_: object) -> None:
        raise OSError("the dashboard is away")

    monkeypatch.setattr(registered("dynamic_rendezvous"), "emit", broken)
    assert handler.next_rendezvous().rank == 0
    assert "the dashboard is away" in caplog.text
