"""Old runs are shown, and removed on request. A run that may be alive is never removed."""

import errno
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from hpcelastic.api import cleaning
from hpcelastic.api.jobs import record_job
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run
from hpcelastic.storage.paths import RunPaths
from tests.api.jobs import job
from tests.cli.shell import Shell

DAY = 86400


def made(shell: Shell, name: str, *, days: float = 40, ended: bool = True) -> Path:
    """Return the directory of a run that has not changed for so many days."""
    shell.write({"train.py": ""})
    root = prepare(resolve(job(name), [])).root
    if ended:
        Run(root).cancel()
    aged(root, days)
    return root


def aged(root: Path, days: float = 40) -> None:
    """Let nothing in a run have changed for so many days."""
    then = time.time() - days * DAY
    for path in root.rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)


def shown(shell: Shell, *arguments: str) -> dict[str, str]:
    """Return why each run is kept, by name."""
    done = shell.command("clean", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return {run["name"]: run["kept"] for run in json.loads(done.stdout)}


def test_old_runs_are_shown_and_not_removed(shell: Shell) -> None:
    old, new = made(shell, "old"), made(shell, "new", days=3)
    (old / "logs/large").write_bytes(b"x" * 2**20)
    aged(old)
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
    aged(root)
    assert shown(shell) == {"old": ""}
    (root / "checkpoints/1.pt").write_text("")
    aged(root)
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
    aged(root)
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
    "file", ["rendezvous/newest.json", "events/node0@1.jsonl", "logs/round-0001/rank-0.out", "checkpoints/1.pt"]
)
def test_an_active_run_that_is_kept_in_a_server_is_kept(shell: Shell, file: str) -> None:
    root = made(shell, "r", ended=False)
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).touch()
    aged(root)
    assert shown(shell, "--checkpoints") == {"r": ""}
    os.utime(root / file)  # such a run changes no lease in its directory
    assert shown(shell, "--checkpoints") == {"r": "it is not old enough"}


def test_a_directory_that_cannot_be_listed_counts_as_one_with_files(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = made(shell, "old")
    made(shell, "other")
    (root / "checkpoints").mkdir()
    aged(root)
    real = os.listdir

    def listdir(path: Path) -> list[str]:
        if path == root / "checkpoints":  # also for root
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    assert shown(shell) == {"old": "it has checkpoints", "other": ""}


def test_a_run_whose_files_cannot_be_examined_hides_no_other(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    root = made(shell, "old")
    made(shell, "other")
    real = os.lstat

    def lstat(path: str) -> os.stat_result:
        if str(path).startswith(f"{root}/logs"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path)

    monkeypatch.setattr(os, "lstat", lstat)
    assert shown(shell) == {"old": "it cannot be read: [Errno 5] Input/output error", "other": ""}


def test_a_run_is_kept_if_slurm_does_not_answer(shell: Shell) -> None:
    paths = RunPaths(made(shell, "r", ended=False))
    paths.jobs.parent.mkdir()
    record_job(paths, "7")
    empty = shell.directory / "empty"
    empty.mkdir()
    done = shell.command("clean", "--json", environ={"PATH": str(empty)})
    [run] = json.loads(done.stdout)
    assert run["kept"].startswith("SLURM does not tell whether it has jobs: squeue: not found")


def test_a_run_that_becomes_active_before_its_removal_is_kept(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    root = made(shell, "old")
    answers = iter(["", "process 7 on this machine"])
    monkeypatch.setattr(cleaning, "active_process", lambda paths: next(answers))
    assert shown(shell, "--delete") == {"old": "process 7 on this machine belongs to it"}
    assert root.is_dir()


def test_a_run_that_another_process_removes_is_no_error(shell: Shell) -> None:
    root = made(shell, "old")
    [old] = cleaning.old_runs(root.parent, 0)
    shutil.rmtree(root)
    assert "contains no run" in cleaning.remove_run(old, 0).kept


def test_files_may_vanish_while_they_are_counted(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    made(shell, "old")
    real = os.walk
    monkeypatch.setattr(os, "walk", lambda path: [*real(path), (str(path), ["gone"], ["gone too"])])
    assert shown(shell) == {"old": ""}


def test_a_link_to_a_run_is_kept(shell: Shell) -> None:
    root = made(shell, "old")
    root.rename(shell.directory / "elsewhere")
    root.symlink_to(shell.directory / "elsewhere")
    assert shown(shell, "--delete") == {"old": "its directory is a symbolic link"}
    assert (shell.directory / "elsewhere").is_dir() and root.is_symlink()


def test_remains_of_interrupted_commands_are_removed(shell: Shell) -> None:
    runs = made(shell, "r", days=1).parent
    for name in (".removed-a-1", ".new-b-1", ".new-c-1"):
        (runs / name / "rendezvous").mkdir(parents=True)
    (runs / ".removed-d-1").symlink_to("r")
    then = time.time() - 2 * DAY
    os.utime(runs / ".new-b-1", (then, then))
    shown(shell, "--delete")
    assert sorted(os.listdir(runs)) == [".new-c-1", "r"]


def test_what_cannot_be_removed_is_reported(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = made(shell, "old").parent
    made(shell, "other")
    (runs / ".removed-a-1").mkdir()
    (runs / ".removed-b-1").mkdir()
    real = shutil.rmtree

    def rmtree(path: Path) -> None:
        if path.name.startswith((".removed-a", ".removed-old")):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        real(path)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    done = shell.command("clean", "--delete", "--json")
    assert done.returncode == 1
    assert {run["name"]: run["kept"] for run in json.loads(done.stdout)} == {"old": "it cannot be removed", "other": ""}
    assert "hpcelastic clean: runs/.removed-a-1: cannot be removed: Permission denied\n" in done.stderr
    assert [name.rpartition("-")[0] for name in sorted(os.listdir(runs))] == [".removed-a", ".removed-old"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nowhere"], "no such directory; write the directory of your runs"),
        (["--older-than=-1", "."], "argument --older-than: write a number of days, 0 or more, not '-1'; see"),
        (["--older-than=nan", "."], "argument --older-than: write a number of days, 0 or more, not 'nan'"),
    ],
)
def test_wrong_arguments_are_refused(shell: Shell, arguments: list[str], problem: str) -> None:
    done = shell.command("clean", *arguments)
    assert done.returncode == 2 and problem in done.stderr
