"""The live table of runs: its keys, its width, and a whole session in a terminal."""

import os
import pty
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from hpcelastic.api import top
from hpcelastic.api.run import Run
from hpcelastic.api.runs import Runs
from hpcelastic.api.status import RunStatus
from hpcelastic.api.top import TopModel
from hpcelastic.backends.files import FileBackend
from hpcelastic.cli import main
from hpcelastic.protocol.decide import close
from hpcelastic.protocol.events import TrainingTotals
from hpcelastic.protocol.settings import Settings
from hpcelastic.rendezvous.run import open_run, steer_run
from hpcelastic.storage.events import event_line
from hpcelastic.storage.paths import RunPaths

UP, DOWN = "\x1b[A", "\x1b[B"


def made(root: Path, name: str, step: int = 0, closed: bool = False) -> Run:
    """Create a run that waits for nodes, or that was closed."""
    paths = RunPaths(root / name)
    for directory in (paths.register, paths.leases, paths.events, paths.training_totals):
        directory.mkdir(parents=True)
    backend = FileBackend(paths)
    open_run(backend, name, Settings(), "n1@0-a")
    if step:
        totals = TrainingTotals(round=1, rank=0, steps=step + 1, before=0, total=1000)
        paths.totals_of("n1@0-a").write_bytes(event_line(totals, "n1"))
    if closed:
        steer_run(backend, "n1@0-a", lambda state: close(state, "enough"))
    return Run(paths.root)


@pytest.fixture
def model(tmp_path: Path) -> TopModel:
    found = TopModel([made(tmp_path, "b", step=5), made(tmp_path, "a", closed=True), made(tmp_path, "c", step=50)])
    found.refresh()
    return found


def names(model: TopModel) -> list[str]:
    return [row.name for row in model.rows]


def shown(model: TopModel, width: int = 80) -> list[str]:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115  # rich closes it
    console.print(model.table())
    return console.export_text().splitlines()


def test_the_keys_sort_the_table(model: TopModel) -> None:
    assert names(model) == ["a", "b", "c"]
    model.press("s")
    assert names(model) == ["c", "b", "a"]
    model.press("p")
    assert names(model) == ["a", "b", "c"]  # closed, joining, joining
    model.press("x")
    assert names(model) == ["a", "b", "c"] and not model.ended


def test_the_chosen_run_stays_chosen(model: TopModel) -> None:
    assert model.chosen == "a"
    for key, expected in ((DOWN, "b"), (DOWN, "c"), (DOWN, "c"), ("s", "c"), (UP, "c"), ("j", "b"), ("k", "c")):
        model.press(key)
        assert model.chosen == expected, key


def test_a_key_opens_a_text_and_any_key_closes_it(model: TopModel) -> None:
    model.press("w")
    assert model.opened == "why" and "The run has had no round" in model.text()
    model.press("q")
    assert model.opened == "" and not model.ended
    model.press("g")
    assert "goodput" in model.text()
    model.press("x")
    model.press("t")
    assert "no round runs" in model.text()  # the error is the text
    model.press("x")
    model.press("q")
    assert model.ended


def test_the_table_fits_into_80_columns(model: TopModel) -> None:
    lines = shown(model)
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["RUN", "PHASE", "ROUND", "NODES", "PROGRESS"]
    assert "closed" in lines[1] and "enough" in lines[1]
    assert lines[-1].startswith("↑↓ choose")


def test_a_run_that_cannot_be_read_does_not_hide_the_others(model: TopModel, tmp_path: Path) -> None:
    register = RunPaths(tmp_path / "a").register
    for path in register.iterdir():
        path.write_text("damaged")
    model.refresh()
    assert [row.phase for row in model.rows] == ["unreadable", "joining", "joining"]


def test_an_error_of_the_filesystem_does_not_hide_the_other_runs(
    model: TopModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunPaths(tmp_path / "a").jobs.mkdir(parents=True)
    model.refresh()
    assert [row.phase for row in model.rows] == ["unreadable", "joining", "joining"]
    model.press("w")
    assert "Is a directory" in model.text()
    assert [line.split()[1] for line in repr(Runs(model.runs)).splitlines()] == ["joining", "unreadable", "joining"]
    assert main(["list", str(tmp_path)]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["unreadable", "joining", "joining"]


def test_no_second_look_at_a_run_begins_while_one_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, goes_on, looks = made(tmp_path, "a"), threading.Event(), list[str]()
    real = run.status

    def status() -> RunStatus:
        looks.append(run.name)
        goes_on.wait(0 if goes_on.is_set() else 90)
        return real()

    monkeypatch.setattr(run, "status", status)
    monkeypatch.setattr(top, "_TIMEOUT", 0.01)
    model = TopModel([run])
    for _ in range(3):
        model.refresh()
        assert [row.phase for row in model.rows] == ["unreadable"]
    goes_on.set()
    assert looks == ["a"]


def test_a_session_in_a_terminal(tmp_path: Path) -> None:
    made(tmp_path / "runs", "digits")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcelastic", "top"],
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path), "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)

    def until(text: str) -> None:
        seen, deadline = "", time.monotonic() + 60
        while text not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 65536).decode(errors="replace")

    until("digits")
    os.write(ours, b"w")
    until("any key: back")
    os.write(ours, b" ")
    until("digits")
    os.write(ours, b"q")
    assert process.wait(timeout=60) == 0
    os.close(ours)


def test_without_a_terminal_the_command_names_others(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hpcelastic", "top"]
    done = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "top needs a terminal; hpcelastic list" in done.stderr
