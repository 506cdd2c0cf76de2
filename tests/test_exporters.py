"""Exporters: their events, their failures, and the end of an agent whose exporter hangs."""

import threading
import time
from pathlib import Path

import pytest

from hpcelastic import exporters
from hpcelastic.agent.member import NodeIdentity
from hpcelastic.agent.settings import AgentSettings, Entrypoint, WorkerSettings
from hpcelastic.bootstrap import Task, run_node_agent
from hpcelastic.errors import ConfigError
from hpcelastic.exporters import Exporter, ExporterContext, exporting
from hpcelastic.network.settings import NetworkSettings
from hpcelastic.protocol.events import AgentEnded, AgentStarted, Event, Fenced, RunEnded
from hpcelastic.protocol.settings import RendezvousSettings, Settings
from hpcelastic.storage.paths import RunPaths

CONTEXT = ExporterContext("r", Path("/runs/r"), "n1")
HERE = "tests.test_exporters"

received: list[tuple[str, float, Event]] = []
resume = threading.Event()


@pytest.fixture(autouse=True)
def nothing_received() -> None:
    received.clear()
    resume.clear()


def collect(context: ExporterContext) -> Exporter:
    return lambda at, event: received.append((context.node, at, event))


def fail(context: ExporterContext) -> Exporter:
    def export(at: float, event: Event) -> None:
        raise OSError("no route to host")

    return export


def unavailable(context: ExporterContext) -> Exporter:
    raise RuntimeError("no licence")


def hanging(context: ExporterContext) -> Exporter:
    def export(at: float, event: Event) -> None:
        resume.wait(60)

    return export


def test_an_exporter_receives_each_event_with_its_time() -> None:
    before = time.time()
    with exporting([f"{HERE}:collect"], CONTEXT, print) as observe:
        observe(Fenced(round=1))
        observe(AgentEnded())
    assert [(node, event) for node, _, event in received] == [("n1", Fenced(round=1)), ("n1", AgentEnded())]
    assert before - 1 <= received[0][1] <= received[1][1] + 1 <= time.time() + 2


def test_exporters_and_the_observer_of_a_caller_all_receive_the_events() -> None:
    seen: list[Event] = []
    with exporting([f"{HERE}:collect", f"{HERE}:collect"], CONTEXT, print, seen.append) as observe:
        observe(AgentEnded())
    assert len(received) == 2
    assert seen == [AgentEnded()]


@pytest.mark.parametrize(
    ("name", "what"), [("fail", "OSError: no route to host"), ("unavailable", "RuntimeError: no licence")]
)
def test_the_first_failure_of_an_exporter_is_reported_and_harms_no_other(name: str, what: str) -> None:
    reports: list[str] = []
    with exporting([f"{HERE}:{name}", f"{HERE}:collect"], CONTEXT, reports.append) as observe:
        for round in range(3):
            observe(Fenced(round=round))
    assert len(received) == 3
    (report,) = reports
    assert f"{HERE}:{name}" in report
    assert what in report


def test_an_exporter_that_hangs_delays_neither_events_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "_END_TIMEOUT", 0.01)
    seen: list[Event] = []
    with exporting([f"{HERE}:hanging"], CONTEXT, print, seen.append) as observe:
        observe(Fenced(round=1))
        observe(Fenced(round=2))
    assert len(seen) == 2
    assert not resume.is_set()
    resume.set()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("there_is_none:export", "ModuleNotFoundError: No module named 'there_is_none'"),
        (f"{HERE}:absent", "has no attribute 'absent'"),
    ],
)
def test_an_exporter_that_is_missing_is_an_error_before_the_agent_starts(name: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what), exporting([name], CONTEXT, print):
        raise AssertionError("not reached")


def test_an_exporter_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site_metrics.py").write_text("from tests.test_exporters import collect\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # pytest restores sys.path
    with exporting(["site_metrics:collect"], CONTEXT, print) as observe:
        observe(AgentEnded())
    assert len(received) == 1


def test_an_agent_passes_its_events_to_the_exporters_of_its_job(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    agent = AgentSettings(
        Entrypoint(script=str(script)), WorkerSettings(preload=()), network=NetworkSettings(notifications=False)
    )
    settings = Settings(rendezvous=RendezvousSettings(last_call=0.0))
    task = Task(RunPaths(tmp_path / "run"), "r", settings, agent, exporters=(f"{HERE}:collect",))
    assert run_node_agent(task, NodeIdentity("n1", address="127.0.0.1")) == 0
    events = [event for _, _, event in received]
    assert isinstance(events[0], AgentStarted)
    assert any(isinstance(event, RunEnded) for event in events)
    assert events[-1] == AgentEnded()
