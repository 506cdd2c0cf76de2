"""A run directory of an older version: it can be read, and the run can be resumed.

``data/failed_run.json`` has the files of a run of two nodes that an older version wrote. Rank 1 failed.
"""

import json
import os
from pathlib import Path

import pytest

from hpcelastic import Run
from hpcelastic.doctor.run_check import read_verdict
from hpcelastic.protocol.events import UnknownEvent, WorkerEnded
from hpcelastic.storage.events import read_events
from hpcelastic.storage.paths import RunPaths
from tests.cli.shell import Shell

OLD = json.loads((Path(__file__).parent / "data" / "failed_run.json").read_text())
SCRIPT = "import os\nprint('hello from rank', os.environ['RANK'])\n"


@pytest.fixture
def directory(shell: Shell) -> Path:
    """The working directory of a run named ``old``."""
    shell.write({"train.py": SCRIPT, "job.yaml": "run: {name: old}\nnodes: 2\nentrypoint: {script: train.py}\n"})
    for name, text in OLD["files"].items():
        path = shell.directory / "runs" / "old" / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(text.replace("{directory}", str(shell.directory)), encoding="latin-1")
    os.chmod(shell.directory / "runs" / "old", 0o700)
    return shell.directory


def test_its_state_and_its_failure_are_shown(directory: Path) -> None:
    status = Run.open(directory / "runs" / "old").status()
    assert (status.phase, status.round, status.world_size) == ("failed", 1, 2)
    assert [(node.name, node.node_state) for node in status.nodes] == [("node0", "left"), ("node1", "left")]
    (failure,) = status.failures
    assert (failure.rank, failure.node) == (1, "node1@0-373ea3fc")
    assert failure.message.startswith("ValueError: bad batch")


def test_its_events_are_read_by_type(directory: Path) -> None:
    events = read_events(directory / "runs" / "old" / "events")
    assert [logged.event for logged in events if isinstance(logged.event, UnknownEvent)] == []
    assert [(e.event.rank, e.event.exit_code) for e in events if isinstance(e.event, WorkerEnded)] == [(1, 1), (0, 0)]


def test_its_logs_are_shown(directory: Path, shell: Shell) -> None:
    shown = shell.hpcelastic("logs", "old")
    assert (shown.returncode, "ValueError: bad batch" in shown.stdout) == (0, True), shown


def test_its_filesystem_report_is_read(directory: Path) -> None:
    written = json.loads(OLD["files"]["filesystem.json"].replace("{directory}", str(directory)))
    assert written["lock"] == "native", "a field that no longer exists"
    verdict = read_verdict(RunPaths(directory / "runs" / "old").filesystem)
    assert verdict is not None
    assert (verdict.safe, verdict.mount.kind, verdict.latency) == (True, "ext4", written["latency"])
    assert [finding.check for finding in verdict.findings] == [finding["check"] for finding in written["findings"]]


@pytest.mark.slow
def test_it_is_resumed(directory: Path, shell: Shell) -> None:
    done = shell.hpcelastic("run", "job.yaml", "--resume")
    assert done.returncode == 0, done
    status = Run.open(directory / "runs" / "old").status()
    assert (status.phase, status.round) == ("succeeded", 2)
