"""Runs are found by name: from other directories, by other processes, after they were moved or removed."""

import errno
import json
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from hpcelastic import ConfigError, Run
from hpcelastic.api.launch import resolve, start
from hpcelastic.api.prepare import prepare
from hpcelastic.api.registry import Registry, known_runs, record_run, user_registry
from hpcelastic.errors import StoreError
from tests.api.jobs import job
from tests.cli.shell import TIMEOUT, Shell


@pytest.fixture
def made(shell: Shell) -> Shell:
    """The runs ``r`` in ``runs`` and ``far`` in ``other``, both recorded."""
    shell.write({"train.py": ""})
    for name, directory in (("r", "runs"), ("far", "other")):
        record_run(prepare(resolve(job(name), [f"run.directory={directory}"])).root)
    return shell


@pytest.mark.slow
def test_a_started_run_is_recorded_for_its_owner_only(shell: Shell) -> None:
    shell.write({"train.py": ""})
    run = start(resolve(job(), []), executor="local")
    run.wait(TIMEOUT)
    place = user_registry().root
    assert json.loads((place / "r").read_text()) == {"directory": str(run.directory)}
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("name", "found"),
    [
        pytest.param("runs/r", "runs/r", id="directory"),
        pytest.param("r", "runs/r", id="in-runs"),
        pytest.param("far", "other/far", id="recorded"),
        pytest.param(Path("other/far"), "other/far", id="path"),
    ],
)
def test_known_names_are_found(name: str, found: str, made: Shell) -> None:
    assert Run.open(name).directory == made.directory / found


def test_runs_in_the_working_directory_come_first(made: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (made.directory / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert Run.open("r").directory == made.directory / "runs" / "r"
    made.write({"elsewhere/train.py": ""})
    near = prepare(resolve(job(), [])).root
    assert Run.open("r").directory == near
    shutil.move(near, "r")
    assert Run.open("r").directory == Path.cwd() / "r"
    assert Run.open("r", runs="../runs").directory == Path.cwd() / "r"


def test_the_latest_run_with_a_name_is_found(made: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    record_run(prepare(resolve(job("far"), ["run.directory=third"])).root)
    assert Run.open("far").directory == made.directory / "third" / "far"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("fat", r"fat: no such run: .*; did you mean far\? The known runs are far, r$", id="near"),
        pytest.param("zzz", r"zzz: no such run: .*/runs; the known runs are far, r$", id="unknown"),
        pytest.param("../r", r"no such run", id="path"),
        pytest.param("", r"no such run", id="empty"),
    ],
)
def test_unknown_names(name: str, message: str, made: Shell) -> None:
    with pytest.raises(ConfigError, match=message):
        Run.open(name)


def test_not_all_of_many_names_are_listed(shell: Shell) -> None:
    for number in range(14):
        record_run(Path(f"/gone/run{number:02}"))
    with pytest.raises(ConfigError, match=r"the known runs are run00, .* run09 and 4 more"):
        Run.open("zzz")


def test_the_record_of_a_removed_run_is_removed(made: Shell) -> None:
    shutil.rmtree("other/far")
    with pytest.raises(
        ConfigError, match=r"far: was in .*/other/far, which contains no run any more; its record is removed now"
    ):
        Run.open("far")
    with pytest.raises(ConfigError, match="no such run"):
        Run.open("far")


def test_a_record_in_an_unmounted_filesystem_is_kept(made: Shell) -> None:
    os.rename("other", "unmounted")
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=r"far: was in .*/other/far, but .*/other does not exist; is its filesystem"
        ):
            Run.open("far")
    os.rename("unmounted", "other")
    assert Run.open("far").name == "far"


def test_a_damaged_record_is_reported(made: Shell) -> None:
    (user_registry().root / "far").write_text("[]")
    with pytest.raises(StoreError, match="contains no directory; remove the file"):
        Run.open("far")


@pytest.mark.slow
@pytest.mark.parametrize("home", ["/proc/nowhere", "train.py"], ids=["unwritable", "a-file"])
def test_a_registry_that_cannot_be_written_stops_no_run(
    home: str, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.write({"train.py": ""})
    monkeypatch.setenv("XDG_STATE_HOME", os.path.abspath(home))
    with pytest.warns(UserWarning, match=r"r is not recorded, and can only be found by its directory .*/runs/r: "):
        run = start(resolve(job(), []), executor="local")
    assert run.wait(TIMEOUT).phase == "succeeded"


def test_the_path_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # to be ignored, says the XDG Base Directory Specification
    assert user_registry() == Registry(Path("/home/ann/.local/state/hpcelastic/runs"))
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert user_registry() == Registry(Path("/state/hpcelastic/runs"))


@pytest.mark.slow
def test_commands_find_a_run_from_anywhere(made: Shell) -> None:
    (made.directory / "elsewhere").mkdir()
    cd = ("-c", "import os, sys; os.chdir('elsewhere'); from hpcelastic.cli import main; sys.exit(main())")
    shown = made.python(*cd, "status", "far")
    assert re.match(rf"run +far +\({made.directory}/other/far\)", shown.stdout), shown
    shutil.rmtree("runs/r")
    listed = made.python(*cd, "list", "--all")
    assert [line.split()[:2] for line in listed.stdout.splitlines()] == [["far", "joining"], ["r", "gone"]]
    assert str(made.directory / "other" / "far") in listed.stdout
    assert made.python(*cd, "list", "--all").stdout.count("\n") == 1
    refused = made.python(*cd, "list")
    assert refused.returncode == 2
    assert "--all" in refused.stderr
    shutil.rmtree("other/far")
    os.symlink("far", "other/far")  # an error of the filesystem, which does not show that the run is gone
    for _ in range(2):
        assert made.python(*cd, "list", "--all").stdout.split()[:2] == ["far", "unreadable"]
    refused = made.python(*cd, "status", "far")
    assert refused.returncode == 1
    assert "Too many levels of symbolic links" in refused.stderr


def test_a_directory_that_cannot_be_read_does_not_count_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of a run whose filesystem has an error stays, and the names of its runs are not left out."""
    read = os.stat

    def stat(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if path == tmp_path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read(path, *args, **options)

    monkeypatch.setattr(os, "stat", stat)
    for look in (
        lambda: Registry(tmp_path / "registry").explain_missing("r", tmp_path / "r"),
        lambda: known_runs(tmp_path),
    ):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            look()
