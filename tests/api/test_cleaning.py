"""Old runs are shown, and removed on request. A run that may be alive is never removed."""

import json
import os
import time
from pathlib import Path

import pytest

from hpcelastic.api import cleaning
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run
from tests.api.jobs import job
from tests.cli.shell import Shell

DAY = 86400


def made(shell: Shell, name: str, *, days: float = 40, ended: bool = True) -> Path:
    """Return the directory of a run that has not changed for so many days."""
    shell.write({"train.py": ""})
    root = prepare(resolve(job(name), [])).root
    if ended:
        Run(root).cancel()
    then = time.time() - days * DAY
    for path in (root / "rendezvous/versions", root / "rendezvous/nodes"):
        os.utime(path, (then, then))
    return root


def shown(shell: Shell, *arguments: str) -> dict[str, str]:
    """Return why each run is kept, by name."""
    done = shell.command("clean", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return {run["name"]: run["kept"] for run in json.loads(done.stdout)}


def test_old_runs_are_shown_and_not_removed(shell: Shell) -> None:
    old, new = made(shell, "old"), made(shell, "new", days=3)
    (old / "logs/large").write_bytes(b"x" * 2**20)
    lines = shell.command("clean").stdout.splitlines()
    assert lines[0].split()[:3] == ["new", "closed", "3.0"] and lines[0].endswith("kept: it is not old enough")
    assert lines[1].split()[:3] == ["old", "closed", "40.0"] and lines[1].endswith("MiB  old")
    assert lines[2].startswith("1 of 2 runs, with ") and lines[2].endswith(
        "may be removed; add --delete to remove them"
    )
    assert old.is_dir() and new.is_dir()


def test_old_runs_are_removed_on_request(shell: Shell) -> None:
    old, new = made(shell, "old"), made(shell, "new", days=3)
    assert "1 of 2 runs" in shell.command("clean", "--delete").stdout
    assert not old.exists() and new.is_dir()
    assert shown(shell, "--older-than=2") == {"new": ""}
    assert shown(shell, "--older-than=2", "--delete") == {"new": ""}
    assert os.listdir("runs") == []


def test_a_run_with_checkpoints_is_kept(shell: Shell) -> None:
    root = made(shell, "old")
    (root / "checkpoints").mkdir()
    assert shown(shell) == {"old": ""}
    (root / "checkpoints/1.pt").write_text("")
    assert shown(shell) == {"old": "it has checkpoints"}
    assert shown(shell, "--checkpoints") == {"old": ""}


def test_a_run_that_has_not_ended_is_kept_for_a_day(shell: Shell) -> None:
    made(shell, "silent", days=2, ended=False)
    made(shell, "alive", days=0.5, ended=False)
    assert shown(shell, "--older-than=0") == {"alive": "it is not old enough", "silent": ""}


def test_a_run_with_a_process_is_kept(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    made(shell, "old")
    monkeypatch.setattr(cleaning, "active_process", lambda paths: "process 7 on this machine")
    assert shown(shell) == {"old": "process 7 on this machine belongs to it"}


def test_a_damaged_run_is_kept(shell: Shell) -> None:
    root = made(shell, "old")
    for version in (root / "rendezvous/versions").iterdir():
        version.write_text("{")
    then = time.time() - 40 * DAY
    os.utime(root / "rendezvous/versions", (then, then))
    assert shown(shell)["old"].startswith("it cannot be read: ")


def test_an_interrupted_removal_is_completed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    root = made(shell, "old")

    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cleaning.shutil, "rmtree", interrupted)
    assert shell.command("clean", "--delete").returncode == 130
    assert not root.exists() and shown(shell) == {}
    monkeypatch.undo()
    shell.command("clean", "--delete", str(root.parent))
    assert list(root.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nowhere"], "no such directory; write the directory of your runs"),
        (["--older-than=-1", "."], "--older-than is -1.0; write a number of days, 0 or more"),
        (["--older-than=nan", "."], "--older-than is nan; write a number of days"),
    ],
)
def test_wrong_arguments_are_refused(shell: Shell, arguments: list[str], problem: str) -> None:
    done = shell.command("clean", *arguments)
    assert done.returncode == 2 and problem in done.stderr
