"""A directory of a worker on its own machine: a process that is killed leaves no more than one of each purpose."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcelastic.training import local_directory
from hpcelastic.training.local_directory import LocalDirectory
from tests.training.workers import become_nobody

PURPOSE = Path("checkpoints")

MAKE = """
import os, signal
from pathlib import Path
from hpcelastic.training.local_directory import LocalDirectory
print((LocalDirectory(Path("checkpoints")).path / "model").write_text("x" * 100), flush=True)
"""


@pytest.fixture(autouse=True)
def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Let this be a worker of a run, whose TMPDIR is this directory."""
    become_nobody(monkeypatch)
    made = tmp_path / "tmp"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    monkeypatch.setattr(local_directory.atexit, "register", lambda remove: None)
    for name, value in {"TMPDIR": made, "HPCELASTIC_RUN_DIR": tmp_path / "run", "HPCELASTIC_NODE": "n1"}.items():
        monkeypatch.setenv(name, str(value))
    yield made


def run(script: str) -> int:
    return subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL).returncode


def test_the_next_process_removes_what_a_killed_one_has_left(directory: Path) -> None:
    for _ in range(2):
        assert run(MAKE + "os.kill(os.getpid(), signal.SIGKILL)") == -9
        assert len([*directory.iterdir()]) == 1
    made = LocalDirectory(PURPOSE)
    assert [*directory.iterdir()] == [made.path] and not [*made.path.iterdir()]
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    made.remove()
    made.remove()
    assert not made.path.exists()


@pytest.mark.parametrize("in_run", [True, False])
def test_it_is_removed_when_the_process_ends(directory: Path, in_run: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_run:
        monkeypatch.delenv("HPCELASTIC_RUN_DIR")
    assert run(MAKE + "raise SystemExit(3)") == 3
    assert not [*directory.iterdir()]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HPCELASTIC_RUN_DIR", "/another/run"),
        ("HPCELASTIC_NODE", "n1.2"),
        ("HPCELASTIC_LOCAL_RANK", "1"),
        ("LOCAL_RANK", "1"),
    ],
)
def test_each_worker_of_each_run_has_its_own(
    directory: Path, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several nodes may be on one machine, and several runs too."""
    first = LocalDirectory(PURPOSE).path
    monkeypatch.setenv(variable, value)
    assert LocalDirectory(PURPOSE).path != first and first.exists()


def test_outside_a_run_each_process_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCELASTIC_RUN_DIR")
    assert LocalDirectory(PURPOSE).path != LocalDirectory(PURPOSE).path


@pytest.mark.parametrize("in_run", [True, False])
def test_each_directory_of_checkpoints_has_its_own(
    directory: Path, in_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may train two models, and load the second one before the first step of the first one."""
    if not in_run:
        monkeypatch.delenv("HPCELASTIC_RUN_DIR")
    atexit = dict[Callable[[], None], None]()
    monkeypatch.setattr(local_directory.atexit, "register", atexit.setdefault)
    monkeypatch.setattr(local_directory.atexit, "unregister", atexit.pop)
    first, second = (LocalDirectory(Path(name)) for name in ("generator", "critic"))
    assert {*directory.iterdir()} == {first.path, second.path} and first.path != second.path
    first.remove()
    assert [*directory.iterdir()] == [second.path]
    for remove in list(atexit):
        remove()
    assert not [*directory.iterdir()]


def test_a_link_in_its_place_is_refused(directory: Path, tmp_path: Path) -> None:
    """Another user may have made it."""
    made = LocalDirectory(PURPOSE).path
    made.rmdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").touch()
    os.symlink(target, made)
    with pytest.raises(OSError, match="symbolic link"):
        LocalDirectory(PURPOSE)
    assert (target / "file").exists()
