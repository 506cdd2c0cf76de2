"""``hpcelastic status``."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.api.page import as_html
from hpcelastic.api.run import Run
from hpcelastic.backends.files import FileBackend
from hpcelastic.cli import find, main
from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.events import TrainingTotals
from hpcelastic.protocol.findings import Hang, HangAction, Slow
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Phase
from hpcelastic.rendezvous.run import open_run
from hpcelastic.storage.events import event_line
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import Register


@pytest.mark.parametrize(
    ("phase", "status"),
    [(Phase.JOINING, 0), (Phase.RUNNING, 0), (Phase.SUCCEEDED, 0), (Phase.FAILED, 1), (Phase.CLOSED, 1)],
)
def test_the_exit_status_shows_a_run_without_success(
    phase: Phase, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = RunPaths(tmp_path / "r")
    for directory in (paths.register, paths.leases):
        directory.mkdir(parents=True)
    state = open_run(FileBackend(paths), "r", Settings(), "test")
    Register(paths.register, "test").commit(1, encode(replace(state, phase=phase)))
    assert main(["status", str(paths.root)]) == status
    assert f"phase      {phase.value}" in capsys.readouterr().out


def create_runs(directory: Path, *names: str) -> None:
    """Create runs, one after the other."""
    for name in names:
        paths = RunPaths(directory / name)
        for part in (paths.register, paths.leases):
            part.mkdir(parents=True)
        open_run(FileBackend(paths), name, Settings(), "test")


def test_the_newest_run_is_the_one_that_was_created_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    create_runs(tmp_path / "runs", "older", "newer")
    (tmp_path / "runs" / "older" / "note").touch()  # this changes its directory
    assert main(["status"]) == 0
    assert "newer" in capsys.readouterr().out


def test_a_run_that_cannot_be_listed_is_not_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    create_runs(tmp_path / "runs", "listed", "other")

    def creation_time(paths: RunPaths) -> float:
        if paths.root.name == "other":
            raise StoreError("Input/output error")
        return 1.0

    monkeypatch.setattr(find, "creation_time", creation_time)
    assert main(["status"]) == 0
    assert "listed" in capsys.readouterr().out


@pytest.mark.parametrize(("action", "shown"), [("restart", True), ("report", True), ("none", False), ("", False)])
def test_a_hang_is_shown_with_what_followed(
    action: HangAction, shown: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = RunPaths(tmp_path / "r")
    for directory in (paths.register, paths.leases):
        directory.mkdir(parents=True)
    state = open_run(FileBackend(paths), "r", Settings(), "test")
    hang = Hang(1, 2, "a@1", "rank 3 on n1 hangs", (3,), action)
    Register(paths.register, "test").commit(1, encode(replace(state, phase=Phase.RUNNING, round=2, hang=hang)))
    assert main(["status", str(paths.root)]) == 0
    assert (f"hang       round 2: rank 3 on n1 hangs ({action})" in capsys.readouterr().out) == shown


@pytest.mark.parametrize(
    ("round", "phase", "shown"), [(2, Phase.RUNNING, True), (1, Phase.RUNNING, False), (2, Phase.JOINING, False)]
)
def test_stragglers_of_the_running_round_are_shown(
    round: int, phase: Phase, shown: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = RunPaths(tmp_path / "r")
    for directory in (paths.register, paths.leases):
        directory.mkdir(parents=True)
    state = open_run(FileBackend(paths), "r", Settings(), "test")
    slow = Slow(round, (3,), "rank 3 on n1 is slow")
    Register(paths.register, "test").commit(1, encode(replace(state, phase=phase, round=2, slow=slow)))
    assert main(["status", str(paths.root)]) == 0
    assert ("slow       rank 3 on n1 is slow" in capsys.readouterr().out) == shown


@pytest.fixture
def training(tmp_path: Path) -> RunPaths:
    """A run that trains in round 2."""
    paths = RunPaths(tmp_path / "r")
    for directory in (paths.register, paths.leases, paths.training_totals):
        directory.mkdir(parents=True)
    state = open_run(FileBackend(paths), "r", Settings(), "test")
    Register(paths.register, "test").commit(1, encode(replace(state, phase=Phase.RUNNING, round=2)))
    up = time.clock_gettime(time.CLOCK_BOOTTIME)
    totals = TrainingTotals(
        round=2,
        rank=0,
        steps=101,
        before=1000,
        first_step=up - 20.0,
        last_step=up,
        total=2200,
        losses=((1100.0, 0.25),),
        saved=up - 7.0,
        saved_step=1050,
    )
    paths.totals_of("n1@0-a").write_bytes(event_line(totals, "n1"))
    return paths


def test_the_progress_and_the_newest_save_are_shown(training: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(training.root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (progress,) = (line for line in lines if line.startswith("progress"))
    assert progress.startswith("progress   step 1,100 of 2,200 (50 %), 5 steps/s, ")
    assert progress.endswith(" left, loss 0.25")
    assert any(line.startswith("saved      step 1,050, ") and line.endswith(" s ago") for line in lines)


def test_the_notebook_has_a_bar(training: RunPaths) -> None:
    page = as_html(Run(training.root).status())
    assert '<progress value="0.5000"></progress> step 1,100 of 2,200 (50 %)' in page
