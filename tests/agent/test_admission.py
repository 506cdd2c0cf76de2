"""Admission of a node: when it is refused, excluded and admitted."""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcelastic.agent import admission
from hpcelastic.agent.admission import EXIT_UNFIT, AdmissionRequest, admit
from hpcelastic.backends.backend import Backend
from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import StoreError
from hpcelastic.health.finding import CheckFinding
from hpcelastic.health.incidents import Incident, IncidentKind, forgive, read_incidents, record
from hpcelastic.health.node_record import NodeRecord
from hpcelastic.health.settings import HealthSettings
from hpcelastic.protocol.decide import Decision
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Member, NodeState, Phase, State
from hpcelastic.rendezvous.run import close_run, open_run, steer_run
from hpcelastic.storage import files
from hpcelastic.storage.leases import read_leases
from hpcelastic.storage.paths import RunPaths

NODE = Member("n1@0-a", NodeState.READY, -1, 1, "10.0.0.1", 0)
NOW = 1_000_000.0


@dataclass
class Clock:
    """A clock that advances during a sleep. The first sleep calls ``happens``."""

    now: float = NOW
    happens: Callable[[], object] = lambda: None
    reported: list[str] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.happens()
        self.happens = lambda: None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for name in ("hpcelastic.agent.admission.time", "hpcelastic.health.memory.time"):
        monkeypatch.setattr(name, clock)
    return clock


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    for directory in (paths.register, paths.leases, paths.incidents):
        files.make_directory(directory)
    open_run(FileBackend(paths), "r", Settings(), "test")
    return paths


def admit_node(paths: RunPaths, clock: Clock, movable: bool = False, **health: object) -> int | None:
    settings = HealthSettings(**{"check": False, **health})  # type: ignore[arg-type]  # its fields
    environ = {"PATH": "/usr/bin:/bin"}
    request = AdmissionRequest(paths, FileBackend(paths), NODE, Settings(), settings, environ, movable=movable)
    return admit(request, clock.reported.append)


def out(paths: RunPaths) -> None:
    record(paths, Incident("n1", IncidentKind.CHECK, "it smokes", NOW))


def test_a_node_without_incidents_joins(paths: RunPaths, clock: Clock) -> None:
    assert admit_node(paths, clock) is None
    assert (clock.reported, clock.now, read_leases(paths.leases)) == ([], NOW, {})


def test_a_node_that_fails_its_check_reports_it_and_ends(paths: RunPaths, clock: Clock) -> None:
    assert admit_node(paths, clock, check=True, disk="0", command="echo bent; exit 1") == EXIT_UNFIT
    assert clock.reported[0].startswith("node check failed: health.command: bent (exit status 1); ")
    assert f"hpcelastic forgive {paths.root} n1" in clock.reported[-1]
    assert [one.message for one in read_incidents(paths)] == ["health.command: bent (exit status 1)"]
    (lease,) = read_leases(paths.leases).values()
    assert (lease.member.name, lease.member.node_state) == ("n1", NodeState.LEFT)


def test_an_excluded_node_waits_until_it_is_forgiven(paths: RunPaths, clock: Clock) -> None:
    out(paths)
    clock.happens = lambda: forgive(paths.incidents)
    assert admit_node(paths, clock) is None
    assert clock.now == NOW + admission._POLL_INTERVAL
    assert clock.reported[0] == "this node had problems recently: check failed just now: it smokes"
    assert clock.reported[1].startswith("it is excluded for 60 min; to admit it now: hpcelastic forgive ")
    assert [lease.member.node_state for lease in read_leases(paths.leases).values()] == [NodeState.LEFT]


def test_a_node_that_another_run_has_recorded_waits(paths: RunPaths, clock: Clock, tmp_path: Path) -> None:
    (directory := tmp_path / "nodes").mkdir()
    shared = NodeRecord(directory)
    shared.add(Incident("n1", IncidentKind.HARDWARE, "it smokes", NOW), Path("/runs/other"))
    clock.happens = lambda: shared.forgive(["n1"])
    clock.now = time.time()
    assert admit_node(paths, clock, shared_record=str(directory)) is None
    assert "it smokes (recorded by " in clock.reported[0] and ", run /runs/other)" in clock.reported[0]
    assert clock.reported[-1] == "this node is admitted again"


FAULTS = {
    "the machine": ([CheckFinding("GPUs", "GPU 1 has 3 uncorrected ECC errors", "drain it", of_machine=True)], ["n1"]),
    "this job": ([CheckFinding("disk", "/tmp has 3 MiB free", "remove files")], []),
    "a warning": ([CheckFinding("clock", "it is late", "set it", bad=False, of_machine=True)], []),
}


@pytest.mark.parametrize(("findings", "shared"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_the_machine_is_recorded_for_the_runs_of_others(
    findings: list[CheckFinding],
    shared: list[str],
    paths: RunPaths,
    clock: Clock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (directory := tmp_path / "nodes").mkdir()
    monkeypatch.setattr(admission, "check_node", lambda context: findings)
    status = admit_node(paths, clock, check=True, shared_record=str(directory))
    assert status == (EXIT_UNFIT if findings[0].bad else None)
    assert [entry.node for entry in NodeRecord(directory).entries()] == shared


def test_an_excluded_node_waits_until_the_run_has_ended(paths: RunPaths, clock: Clock) -> None:
    out(paths)
    clock.happens = lambda: close_run(FileBackend(paths), "test", "enough")
    assert admit_node(paths, clock) == 1


def test_an_excluded_node_waits_until_no_round_has_formed_for_long(paths: RunPaths, clock: Clock) -> None:
    out(paths)
    assert admit_node(paths, clock) is None
    assert admission._IDLE_RUN_TIMEOUT < clock.now - NOW < 2 * admission._IDLE_RUN_TIMEOUT
    assert clock.reported[-1] == "no round for 60 s: this node is admitted although it had problems recently"


def test_a_relocatable_agent_leaves_once_a_round_runs_without_it(paths: RunPaths, clock: Clock) -> None:
    out(paths)

    def begin(state: State) -> Decision:
        return Decision(replace(state, phase=Phase.RUNNING, round=1), "for the test")

    def forms() -> None:
        steer_run(FileBackend(paths), "test", begin)

    clock.happens = forms
    assert admit_node(paths, clock, movable=True) == EXIT_UNFIT
    assert clock.now == NOW + admission._POLL_INTERVAL


def test_a_relocatable_agent_is_admitted_if_the_run_needs_it(paths: RunPaths, clock: Clock) -> None:
    out(paths)
    assert admit_node(paths, clock, movable=True) is None


def test_without_exclusion_no_node_waits(paths: RunPaths, clock: Clock) -> None:
    out(paths)
    assert admit_node(paths, clock, exclude=False) is None
    assert clock.now == NOW


def test_a_waiting_node_ends_at_a_signal(paths: RunPaths, clock: Clock) -> None:
    out(paths)
    before = signal.getsignal(signal.SIGTERM)
    clock.happens = lambda: signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        admit_node(paths, clock)
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_waiting_node_waits_for_a_failed_directory(
    paths: RunPaths, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    out(paths)
    read = admission.read_state

    def fails_once(_: Backend) -> None:
        monkeypatch.setattr(admission, "read_state", read)
        forgive(paths.incidents)
        raise admission.StoreError("no answer")

    monkeypatch.setattr(admission, "read_state", fails_once)
    assert admit_node(paths, clock) is None
    assert clock.now == NOW + 2 * admission._POLL_INTERVAL


class Measurer:
    """A measurer of a simulated node of two, which serves a connection to no node."""

    def __init__(self, *arguments: object) -> None:
        self._answers = [[{"device": "processors", "flops": 1e12, "memory": 1e11}], {"port": 1}]

    def ask(self, command: dict[str, object]) -> None: ...

    def answer(self) -> object:
        if not self._answers:
            time.sleep(30.0)
            raise StoreError("the other node did not connect")
        return self._answers.pop(0)

    def close(self) -> None: ...


@pytest.mark.parametrize("broken", [0, 1])
def test_a_node_that_fails_its_check_does_not_delay_the_benchmark_of_the_others(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    monkeypatch.setattr("hpcelastic.doctor.benchmark.MeasurerProcess", Measurer)
    monkeypatch.setattr("hpcelastic.agent.preflight._STEP_TIMEOUT", 25.0)
    statuses: dict[int, int | None] = {}
    reported: dict[int, list[str]] = {0: [], 1: []}

    def node(order: int) -> None:
        member = replace(NODE, node=f"n{order}@0-a", address="127.0.0.1", job="7", job_nodes=2, order=order)
        command = "echo bent; exit 1" if order == broken else None
        health = HealthSettings(check=True, disk="0", shared_memory="0", command=command)
        environ = {"PATH": "/usr/bin:/bin"}
        request = AdmissionRequest(paths, FileBackend(paths), member, Settings(), health, environ, ("measurer",))
        statuses[order] = admit(request, reported[order].append)

    threads = [threading.Thread(target=node, args=(order,)) for order in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == {broken: EXIT_UNFIT, 1 - broken: None}, reported
    bad = f"benchmark: n{broken} could not be measured: its node check failed: health.command: bent (exit status 1)"
    assert bad in reported[0], reported
    assert not [line for line in reported[1 - broken] if "were not measured" in line]


def test_an_error_of_the_benchmark_does_not_keep_a_node_from_its_run(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcelastic.doctor.benchmark.MeasurerProcess", Measurer)
    monkeypatch.setattr("hpcelastic.agent.preflight.Coordination.open", Mock(side_effect=RecursionError("too deep")))
    member = replace(NODE, node="n0@0-a", address="127.0.0.1", job="7", job_nodes=2)
    environ = {"PATH": "/usr/bin:/bin"}
    health = HealthSettings(check=True, disk="0", shared_memory="0")
    reported = list[str]()
    request = AdmissionRequest(paths, FileBackend(paths), member, Settings(), health, environ, ("measurer",))
    assert admit(request, reported.append) is None
    assert "the nodes were not measured: RecursionError: too deep" in reported
