"""The report of doctor determines the settings of runs that are created in its directory."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.backends.files import FileBackend
from hpcelastic.doctor.run_check import read_verdict
from hpcelastic.doctor.verdict import FilesystemReport
from hpcelastic.errors import ConfigError
from hpcelastic.protocol.codec import encode
from hpcelastic.rendezvous.run import read_state
from hpcelastic.storage import files
from hpcelastic.storage.mounts import mount_of
from hpcelastic.storage.paths import RunPaths, doctor_verdict
from tests.api.jobs import job
from tests.cli.shell import TIMEOUT, Shell


@pytest.fixture
def script(shell: Shell) -> Shell:
    shell.write({"train.py": ""})
    return shell


def left_by_doctor(**changes: Any) -> None:
    """A filesystem report for the runs in ``runs``."""
    runs = Path("runs").absolute()
    runs.mkdir(mode=0o700, exist_ok=True)
    verdict = FilesystemReport(**{"safe": True, "mount": mount_of(runs), "nodes": 2, **changes})
    files.publish(doctor_verdict(runs), files.to_json(encode(verdict)))


def test_a_run_on_a_slow_filesystem_has_longer_times_and_keeps_them(script: Shell) -> None:
    left_by_doctor(lag=5.0)
    paths = prepare(resolve(job(), []))
    created = read_state(FileBackend(paths)).settings
    assert (created.rendezvous.lease, created.rendezvous.margin) == (20.0, 10.0)
    verdict = read_verdict(paths.filesystem)
    assert verdict is not None and verdict.lag == 5.0
    left_by_doctor(lag=50.0)
    prepare(resolve(job(), []), resume=True)
    assert read_state(FileBackend(paths)).settings == created


def test_a_run_without_a_report_has_the_configured_times(script: Shell) -> None:
    config = resolve(job(), [])
    paths = prepare(config)
    verdict = read_verdict(paths.filesystem)
    assert verdict is not None and verdict.safe and verdict.nodes == 1
    assert read_state(FileBackend(paths)).settings.nodes == config.protocol_settings.nodes
    assert not [name for name in os.listdir(paths.root) if name.startswith(".")]


def test_a_directory_that_cannot_be_safe_leaves_nothing(script: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    before = script.listing()
    monkeypatch.setattr(files, "publish_new", lambda path, data: [path.write_bytes(data), True][1])
    with pytest.raises(ConfigError, match=r"cannot be safe: exclusive creation: .* hpcelastic doctor --dir"):
        prepare(resolve(job(), ["run.directory=new/runs"]))
    assert script.listing() == before


@pytest.mark.slow
def test_agents_with_the_same_flags_join_a_run_whose_times_were_raised(script: Shell) -> None:
    left_by_doctor(lag=0.6, latency=0.01)
    agents = [script.agent("--nnodes=2", "--node-name", f"n{i}", "train.py") for i in range(2)]
    outputs = [finished(agent) for agent in agents]
    assert all(
        "raised rendezvous.lease from 2 to 2.4 s, rendezvous.margin from 0.5 to 1.2 s" in output for output in outputs
    )
    paths = RunPaths(Path("runs").absolute() / "r")
    assert read_state(FileBackend(paths)).settings.rendezvous.margin == 1.2
    assert json.loads(paths.filesystem.read_text())["lag"] == 0.6
    assert len(files.names(paths.race)) > 0


def finished(agent: "subprocess.Popen[str]") -> str:
    """Return the output of an agent that must succeed."""
    _, output = agent.communicate(timeout=2 * TIMEOUT)
    assert agent.returncode == 0, output
    return output
