"""What a run was submitted from: the state of the code, the packages, and a copy of the code."""

import json
import os
import pwd
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.api import submissions as module
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run
from hpcelastic.errors import ConfigError
from tests.api.jobs import job
from tests.cli.shell import Shell

SCRIPT = "print('trains')\n"


@pytest.fixture(autouse=True)
def fresh_facts() -> None:
    module._facts.cache_clear()


@pytest.fixture
def script(shell: Shell) -> Shell:
    shell.write({"train.py": SCRIPT})
    return shell


@pytest.fixture
def repository(script: Shell) -> Shell:
    """A repository with a commit, a changed file, a new file and an ignored one."""
    script.write({".gitignore": "data\nruns\n", "lib/model.py": "x = 1\n", "data/large.bin": "1"})
    git(script, "init", "-q", "-b", "main")
    git(script, "add", ".")
    git(script, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first")
    script.write({"lib/model.py": "x = 2\n", "new.py": "y = 3\n"})
    return script


def git(shell: Shell, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=shell.directory, check=True, capture_output=True, text=True, env=shell.environ
    ).stdout.strip()


def submitted(*overrides: str) -> tuple[Path, dict[str, Any]]:
    """Return the directory of a new run, and what it recorded of its submission."""
    paths = prepare(resolve(job(), overrides))
    (found,) = Run(paths.root).provenance()
    return paths.root, found


def test_packages_are_recorded_without_a_repository(script: Shell) -> None:
    _, found = submitted()
    assert found["repository"] is None
    assert {"torch", "submitit", "PyYAML"} <= {name.replace("pyyaml", "PyYAML") for name in found["packages"]}
    assert found["directory"] == str(script.directory) and found["python"].startswith("3.")


def test_a_user_without_a_name_may_submit(script: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)

    def unnamed(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")  # as in some containers

    monkeypatch.setattr(pwd, "getpwuid", unnamed)
    _, found = submitted()
    assert found["user"] == f"user {os.geteuid()}"


def test_the_commit_and_the_changes_are_recorded(repository: Shell) -> None:
    root, found = submitted()
    assert found["repository"]["commit"] == git(repository, "rev-parse", "HEAD")
    assert found["repository"]["branch"] == "main"
    assert found["repository"]["changed"] == [" M lib/model.py", "?? new.py"]
    assert "+x = 2" in (root / "submissions/0001/changes.diff").read_text()
    assert os.stat(root / "submissions/0001").st_mode & 0o077 == 0


def test_a_program_of_the_configuration_of_git_is_not_started(repository: Shell) -> None:
    for key in ("core.fsmonitor", "diff.external"):
        git(repository, "config", key, f"{repository.directory}/evil")
    repository.write({"evil": f"#!/bin/sh\ntouch {repository.directory}/started\n"})
    (repository.directory / "evil").chmod(0o700)
    submitted()
    assert not (repository.directory / "started").exists()


def test_each_submission_of_a_run_is_recorded(repository: Shell) -> None:
    first = prepare(resolve(job(), []))
    prepare(resolve(job(), []), resume=True)
    assert [each["repository"]["branch"] for each in Run(first.root).provenance()] == ["main", "main"]


def test_the_copy_has_all_files_that_git_does_not_ignore(repository: Shell) -> None:
    root, _ = submitted("run.code=[git]")
    copy = root / "submissions/0001/code"
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()) == [
        ".gitignore", "lib/model.py", "new.py", "train.py",
    ]  # fmt: skip
    assert (copy / "lib/model.py").read_text() == "x = 2\n"
    config = json.loads((root / "config.json").read_text())
    assert config["entrypoint"]["script"] == str(copy / "train.py")


def test_named_files_and_directories_are_copied(repository: Shell) -> None:
    repository.write({"lib/__pycache__/model.pyc": ""})
    root, _ = submitted("run.code=[train.py, lib]")
    copy = root / "submissions/0001/code"
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()) == [
        "lib/model.py", "train.py",
    ]  # fmt: skip


def test_runs_are_no_part_of_the_code(repository: Shell) -> None:
    git(repository, "rm", "-q", "--cached", ".gitignore")
    (repository.directory / ".gitignore").unlink()
    submitted("run.code=[git]")
    root, _ = submitted("run.code=[.]", "run.name=second")
    names = {path.name for path in (root / "submissions/0001/code").iterdir()}
    assert names == {"data", "lib", "new.py", "train.py"}


def test_earlier_runs_beside_the_code_are_no_part_of_it(repository: Shell) -> None:
    submitted("run.code=[lib, train.py]", "run.directory=.")
    repository.write({".new-r-1/data": "", "lib/.removed-r-2/data": "", "lib/r/rendezvous/versions/v1.json": ""})
    root, _ = submitted("run.code=[.]", "run.directory=.", "run.name=second")
    copy = root / "submissions/0001/code"
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()) == [
        ".gitignore", "data/large.bin", "lib/model.py", "new.py", "train.py",
    ]  # fmt: skip


def test_imports_lead_to_the_copy(repository: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{repository.directory}/lib:/elsewhere")
    root, _ = submitted("run.code=[git]", "environment.A=b")
    environment = json.loads((root / "config.json").read_text())["environment"]
    first, *others = environment["PYTHONPATH"].split(":")
    assert first == str(root / "submissions/0001/code/lib")
    assert others[-2:] == [f"{repository.directory}/lib", "/elsewhere"] and environment["A"] == "b"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("[lib]", "does not contain the script train.py; add its directory to run.code"),
        ("[lib, nothing]", "nothing does not exist; correct the name"),
        ("[train.py, /etc/hostname]", "/etc/hostname is not in .*; submit from a directory that contains it"),
    ],
)
def test_a_wrong_name_is_refused_and_nothing_is_left(repository: Shell, code: str, problem: str) -> None:
    before = repository.listing()
    with pytest.raises(ConfigError, match=problem):
        submitted(f"run.code={code}")
    assert repository.listing() == before


def test_git_needs_a_repository(script: Shell) -> None:
    with pytest.raises(ConfigError, match=r"run\.code is git, and .* is in no git repository; name files"):
        submitted("run.code=[git]")


@pytest.mark.parametrize("limit", ["_MAX_FILES", "_MAX_BYTES"])
def test_data_is_refused(repository: Shell, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, limit, 2)
    with pytest.raises(ConfigError, match=r"run\.code has more than .* name only the code, not data"):
        submitted("run.code=[git]")


def test_a_module_has_no_copy(script: Shell) -> None:
    with pytest.raises(ConfigError, match=r"run\.code needs entrypoint.script"):
        resolve(job(entrypoint={"module": "json.tool"}), ["run.code=[git]"])
