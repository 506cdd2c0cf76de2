"""The metrics of runs for Prometheus."""

import errno
import os
import shutil
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from hpcelastic.api import metrics
from hpcelastic.api.metrics import RunCollector, registry_of
from hpcelastic.api.run import Run
from hpcelastic.backends.connect import RunReader
from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol.events import AgentStarted, Event, StateChanged, TrainingTotals, WorkersStarted
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Cause, Phase
from hpcelastic.rendezvous.run import open_run
from hpcelastic.storage.events import EventLog
from hpcelastic.storage.paths import RunPaths
from tests.cli.shell import TIMEOUT, Shell, eventually, shell_in


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    paths = RunPaths(tmp_path / "digits")
    for directory in (paths.register, paths.events):
        directory.mkdir(parents=True)
    open_run(FileBackend(paths), "digits", Settings(), "n1@0-a")
    return Run(paths.root)


def log(run: Run, *events: Event, node: str = "n1") -> None:
    written = EventLog(RunPaths(run.directory).event_log(f"{node}@0-a"), node)
    for event in events:
        written.write(event)
    assert written.close(10)


def failed_round(number: int, version: int) -> list[Event]:
    workers = WorkersStarted(
        round=number,
        world_size=1,
        group_rank=0,
        group_world_size=1,
        role_rank=0,
        role_world_size=1,
        pids={0: 1},
        cpus="0",
    )
    begin = now()
    totals = TrainingTotals(
        round=number,
        rank=0,
        steps=11,
        before=40,
        restored=begin,
        first_step=begin,
        last_step=begin + 0.001,
        saved_step=45,
    )
    ended = StateChanged(
        version=version + 1, phase=Phase.JOINING, round=number, restarts=1, reason="x", cause=Cause.WORKER
    )
    running = StateChanged(version=version, phase=Phase.RUNNING, round=number, restarts=0, reason="x")
    return [running, workers, totals, ended]


def values(registry: CollectorRegistry) -> dict[str, float]:
    """Return the value of each sample, with its labels in the name. The text is parsed as OpenMetrics."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = ",".join(value for name, value in sorted(sample.labels.items()) if name != "run")
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_the_metrics_are_those_of_the_account(run: Run) -> None:
    log(run, AgentStarted(address="h", pid=7, workers=1), *failed_round(1, 2))
    found = values(registry_of([run]))
    assert found["hpcelastic_up{}"] == 1
    assert found["hpcelastic_faults_total{worker}"] == 1 and found["hpcelastic_faults_total{node}"] == 0
    assert found["hpcelastic_step{}"] == 50 and found["hpcelastic_at_risk_steps{}"] == 5
    assert found["hpcelastic_phase{joining}"] == 1 and found["hpcelastic_phase{running}"] == 0
    account = run.goodput()
    assert found["hpcelastic_node_seconds_total{useful}"] == pytest.approx(account.node_seconds["useful"])


def test_counters_do_not_fall(run: Run) -> None:
    registry = CollectorRegistry()
    registry.register(RunCollector([run]))
    log(run, AgentStarted(address="h", pid=7, workers=1), *failed_round(1, 2))
    before = values(registry)
    for path in RunPaths(run.directory).events.iterdir():
        path.unlink()
    after = values(registry)
    for name, value in before.items():
        assert "_total" not in name or after[name] >= value, name


def test_a_run_that_cannot_be_read_is_down(run: Run) -> None:
    (RunPaths(run.directory).events / "n1@0-a.jsonl").mkdir()
    found = values(registry_of([run]))
    assert found == {"hpcelastic_up{}": 0.0}


@pytest.mark.parametrize("error", [OSError("EIO"), ValueError("bad"), ConfigError("no backend"), StoreError("gone")])
def test_a_run_that_cannot_be_read_hides_no_other(
    run: Run, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run.directory, tmp_path / "other")
    real = metrics.account_of

    def account_of(reader: RunReader) -> object:
        if reader.name == "other":
            raise error
        return real(reader)

    monkeypatch.setattr(metrics, "account_of", account_of)
    text = generate_latest(registry_of([Run(tmp_path / "other"), run])).decode()
    assert 'hpcelastic_up{run="other"} 0.0' in text
    assert 'hpcelastic_up{run="digits"} 1.0' in text


def test_a_run_whose_filesystem_hangs_hides_no_other(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(run.directory, tmp_path / "other")
    goes_on, looks, real = threading.Event(), list[str](), metrics.account_of

    def account_of(reader: RunReader) -> object:
        looks.append(reader.name)
        if reader.name == "other" and not goes_on.wait(0 if goes_on.is_set() else TIMEOUT):
            raise TimeoutError
        return real(reader)

    registry = registry_of([Run(tmp_path / "other"), run])
    monkeypatch.setattr(metrics, "account_of", account_of)
    with monkeypatch.context() as patch:
        patch.setattr(metrics, "_TIMEOUT", 0.5)
        for _ in range(2):
            text = generate_latest(registry).decode()
            assert 'hpcelastic_up{run="other"} 0.0' in text
        assert looks.count("other") == 1, "no second look begins while one hangs"
    goes_on.set()
    eventually(lambda: 'hpcelastic_up{run="other"} 1.0' in generate_latest(registry).decode())


def test_all_runs_are_read_at_once(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(run.directory, tmp_path / "other")
    both, real = threading.Barrier(2), metrics.account_of

    def account_of(reader: RunReader) -> object:
        both.wait(TIMEOUT)
        return real(reader)

    monkeypatch.setattr(metrics, "account_of", account_of)
    text = generate_latest(registry_of([Run(tmp_path / "other"), run])).decode()
    assert 'hpcelastic_up{run="other"} 1.0' in text and 'hpcelastic_up{run="digits"} 1.0' in text


@pytest.mark.parametrize("every", ["0", "-1", "nan", "inf"])
def test_a_wrong_interval_is_refused(run: Run, shell: Shell, every: str) -> None:
    refused = shell.command("metrics", str(run.directory), "--textfile=.", f"--every={every}")
    assert refused.returncode == 2 and "write a number of seconds, more than 0" in refused.stderr


def test_a_file_that_cannot_be_written_is_tried_again(run: Run, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []

    def write(path: str, registry: CollectorRegistry) -> None:
        tries.append(path)
        if len(tries) == 4:
            raise KeyboardInterrupt
        if len(tries) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(prometheus_client, "write_to_textfile", write)
    done = shell.command("metrics", str(run.directory), "--textfile=.", "--every=0.001")
    assert done.returncode == 130
    assert done.stdout == "hpcelastic.prom\n"
    assert done.stderr == "hpcelastic metrics: hpcelastic.prom: No space left on device\n" * 2


def test_a_directory_that_does_not_exist_is_refused(run: Run, shell: Shell) -> None:
    refused = shell.command("metrics", str(run.directory), "--textfile=missing", "--every=0.001")
    assert refused.returncode == 1 and "No such file or directory" in refused.stderr


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


def test_the_command_prints_writes_and_serves(run: Run, shell: Shell) -> None:
    log(run, AgentStarted(address="h", pid=7, workers=1))
    name = str(run.directory)
    printed = shell.hpcelastic("metrics", name)
    assert 'hpcelastic_up{run="digits"} 1.0' in printed.stdout, printed.stderr
    written = shell.hpcelastic("metrics", name, "--textfile", ".")
    assert written.stdout.strip() == "hpcelastic.prom"
    assert 'hpcelastic_up{run="digits"} 1.0' in (shell.directory / "hpcelastic.prom").read_text()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = shell.start("-m", "hpcelastic", "metrics", name, "--listen", str(port))

    def served() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                return 'hpcelastic_up{run="digits"} 1.0' in answer.read().decode()
        except OSError:
            return False

    eventually(served)
    server.terminate()
    server.wait()


@pytest.mark.parametrize("address", ["nine", "host:", "70000"])
def test_a_wrong_address_is_refused(run: Run, shell: Shell, address: str) -> None:
    refused = shell.command("metrics", str(run.directory), f"--listen={address}")
    assert refused.returncode == 2 and "is no port" in refused.stderr
