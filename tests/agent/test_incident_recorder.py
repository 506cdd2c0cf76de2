"""The incidents that an agent records about nodes with faults."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.agent.incident_recorder import IncidentRecorder
from hpcelastic.backends.files import FileBackend
from hpcelastic.health.incidents import IncidentKind, read_incidents
from hpcelastic.health.settings import HealthSettings
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Failure, Member, NodeState, Participant, Phase, State
from hpcelastic.storage.paths import RunPaths
from tests.agent.processes import TIMEOUT

HERE = Member("n1@0-a", NodeState.READY, 0, 1, "10.0.0.1", 1)
Watching = Callable[..., dict[str, tuple[str, int]]]


def state(round: int, *nodes: str, phase: Phase = Phase.RUNNING) -> State:
    return State("r", Settings(), phase, round, tuple(Participant(f"{n}@0-a", 1, "10.0.0.1", 1) for n in nodes))


def failure(message: str) -> Failure:
    return Failure(2, "n1@0-a", 3, 0, 1, message)


@pytest.fixture
def watch(tmp_path: Path) -> Watching:
    """Return the incidents that n1 has recorded after these states: the cause and the round by node."""

    def watch(*states: State, enabled: bool = True) -> dict[str, tuple[str, int]]:
        paths = RunPaths(tmp_path)
        incident_recorder = IncidentRecorder(paths, FileBackend(paths), HERE, HealthSettings(exclude=enabled))
        for seen in states:
            incident_recorder.observe(seen)
        incident_recorder.close(10.0)
        return {incident.host: (incident.cause.value, incident.round) for incident in read_incidents(paths)}

    return watch


SEEN = {
    "a loss": ([state(1, "n1", "n2"), state(1, "n1", "n2", phase=Phase.JOINING), state(2, "n1")], {"n2": ("lost", 1)}),
    "no loss": ([state(1, "n1", "n2"), state(2, "n1", "n2")], {}),
    "not the first member": ([state(1, "n2", "n1", "n3"), state(2, "n2", "n1")], {}),
    "a newcomer": ([state(1, "n2", "n3"), state(2, "n1", "n2")], {}),
    "a node that has missed a round": ([state(1, "n1", "n2"), state(3, "n1")], {}),
    "a node that has just started": ([state(7, "n1")], {}),
}


@pytest.mark.parametrize(("states", "noted"), SEEN.values(), ids=SEEN)
def test_the_first_present_member_records_losses(
    states: list[State], noted: dict[str, tuple[str, int]], watch: Watching
) -> None:
    assert watch(*states) == noted


def test_the_recorder_may_be_disabled(watch: Watching) -> None:
    assert watch(state(1, "n1", "n2"), state(2, "n1"), enabled=False) == {}


def test_a_failure_of_the_hardware_is_recorded(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    incident_recorder = IncidentRecorder(paths, FileBackend(paths), HERE, HealthSettings())
    assert incident_recorder.record_failure(failure("ZeroDivisionError: division by zero")) is None
    assert (
        incident_recorder.record_failure(failure("CUDA error: uncorrectable ECC error encountered"))
        is IncidentKind.HARDWARE
    )
    incident_recorder.close(10.0)
    (noted,) = read_incidents(paths)
    assert (noted.host, noted.round) == ("n1", 2)
    assert noted.message == "rank 3: CUDA error: uncorrectable ECC error encountered"


def test_an_incident_names_the_shared_machine(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    incident_recorder = IncidentRecorder(
        paths, FileBackend(paths), replace(HERE, node="n1_2@0-a", host="n1"), HealthSettings()
    )
    incident_recorder.record_failure(failure("CUDA error: uncorrectable ECC error encountered"))
    incident_recorder.close(10.0)
    assert [incident.host for incident in read_incidents(paths)] == ["n1"]


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    (tmp_path / "run").write_text("a file")
    paths = RunPaths(tmp_path / "run")
    incident_recorder = IncidentRecorder(paths, FileBackend(paths), HERE, HealthSettings())
    assert incident_recorder.record_failure(failure("uncorrectable ECC error")) is IncidentKind.HARDWARE
    incident_recorder.close(TIMEOUT)
    assert raised == []
    assert not any(thread.name == "incident recorder" for thread in threading.enumerate())
