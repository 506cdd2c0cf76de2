"""A run's directory is created completely or not at all, whatever happens meanwhile."""

import os
import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.api import prepare as module
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run, find_runs
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.storage import files
from tests.api.jobs import job
from tests.cli.shell import Shell


@pytest.fixture
def script(shell: Shell) -> Shell:
    shell.write({"train.py": ""})
    return shell


def test_the_directory_is_private_and_contains_a_waiting_run(script: Shell) -> None:
    paths = prepare(resolve(job(), []))
    assert stat.S_IMODE(paths.root.stat().st_mode) == 0o700
    assert Run(paths.root).status().phase == "joining"
    assert not [name for name in script.listing() if ".new-" in name or files.DRAFT_PREFIX in name]


def test_a_tilde_is_the_home_directory(script: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(script.directory / "home"))
    paths = prepare(resolve(job(), ["run.directory=~/runs"]))
    assert paths.root == script.directory / "home" / "runs" / "r"


def fails(*_args: Any, **_keywords: Any) -> Any:
    raise StoreError("the disk is full")


@pytest.mark.parametrize("where", [(files, "publish"), (files, "make_directory"), (module, "open_run")], ids=str)
def test_an_error_during_the_creation_leaves_nothing(
    where: tuple[Any, str], script: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = script.listing()
    monkeypatch.setattr(*where, fails)
    with pytest.raises(StoreError, match="the disk is full"):
        prepare(resolve(job(), ["run.directory=new/runs"]))
    assert script.listing() == before


DIES = """
import os, signal, sys
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import find_runs
from pathlib import Path
from tests.api.jobs import job

CHANGES = {"os.mkdir", "os.rename", "os.link", "os.remove"}
config = resolve(job(), [])

def die_at(number):
    count = 0
    def hook(event, args):
        nonlocal count
        if event in CHANGES or (event == "open" and isinstance(args[2], int) and args[2] & os.O_CREAT):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

number, died, seen = 0, True, []
while died:
    number += 1
    pid = os.fork()
    if pid == 0:
        die_at(number)
        prepare(config)
        os._exit(0)
    died = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    runs = find_runs(Path("runs"))
    seen.append([run.status().phase for run in runs])
    if runs and died:
        os.rename("runs/r", f"runs/whole-{number}")
print(number, seen)
"""


@pytest.mark.slow
def test_sudden_death_leaves_no_incomplete_run(script: Shell) -> None:
    done = script.python("-c", DIES, environ={"PYTHONPATH": str(Path(__file__).parents[2])})
    assert done.returncode == 0, done.stderr
    found = re.match(r"(\d+) ", done.stdout)
    assert found and int(found[1]) > 10, done.stdout
    listed = script.hpcelastic("list").stdout
    assert "r " in listed
    assert all(": " not in line.split("  ")[0] and "joining" in line for line in listed.splitlines()), listed


def at_once(count: int, call: Callable[[], Any]) -> list[Any]:
    """Return the results of ``count`` threads that call ``call``, exceptions included."""
    results: list[Any] = []
    barrier = threading.Barrier(count)

    def one() -> None:
        barrier.wait()
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_one_of_many_that_create_the_same_run_succeeds(script: Shell) -> None:
    config = resolve(job(), [])
    results = at_once(8, lambda: prepare(config))
    errors = [result for result in results if isinstance(result, Exception)]
    assert len(errors) == 7
    for error in errors:
        assert isinstance(error, ConfigError)
        assert "a run with this name exists already" in str(error)
    assert [run.name for run in find_runs(Path("runs"))] == ["r"]
    assert os.listdir("runs") == ["r"]
