"""Several runs of one job."""

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcelastic import ConfigError, Run, RunFailed, Runs, SlurmError, sweep
from hpcelastic.api import launch, runs
from hpcelastic.api.registry import record_run
from hpcelastic.storage.paths import RunPaths
from tests.api.jobs import KEYWORDS, WAITS, job
from tests.cli.shell import TIMEOUT, Shell, eventually

LOCAL: dict[str, Any] = {"executor": "local", **KEYWORDS}


def train(lr: float, steps: int = 1) -> float:
    if lr < 0:
        raise ValueError(f"lr is {lr}")
    return lr * steps


train.__module__ = "__main__"  # so that it is pickled by value, as from a notebook


@pytest.mark.slow
def test_grid_of_a_functions_arguments(shell: Shell) -> None:
    started = sweep(train, {"lr": [0.5, 2], "steps": (1, 4)}, run__name="s", **LOCAL)
    assert [run.name for run in started] == ["s-000", "s-001", "s-002", "s-003"]
    assert started.results(TIMEOUT) == [[0.5], [2.0], [2], [8]]
    assert [status.phase for status in started.wait()] == ["succeeded"] * 4
    assert [status.phase for status in asyncio.run(awaited(started))] == ["succeeded"] * 4
    shown = repr(started).splitlines()
    assert re.fullmatch(r"s-001  succeeded  1  lr=0.5, steps=4  all workers of round 1 succeeded", shown[1])
    assert "<td>lr=2, steps=1</td>" in started._repr_html_()
    assert [run.name for run in started[2:]] == ["s-002", "s-003"]
    assert isinstance(started[0], Run)


async def awaited(started: Runs) -> list[Any]:
    return await started


@pytest.mark.slow
def test_points_are_keys_of_a_job_file(shell: Shell) -> None:
    shell.write(
        {
            "job.yaml": "run: {name: r}\nentrypoint: {script: train.py}\nworkers: {per_node: 1}\n",
            "train.py": "import sys; print(sys.argv[1:])",
        }
    )
    points = [{"entrypoint.args": ["--lr", 1]}, {"entrypoint__args": ["a"], "workers.per_node": 2}]
    started = sweep("job.yaml", points, executor="local", nodes=1)
    started.wait(TIMEOUT)
    logs = [[line.partition("] ")[2] for line in run.logs()] for run in started]
    assert logs == [["['--lr', '1']"], ["['a']"] * 2]
    assert json.loads(RunPaths(started[0].directory).point.read_text()) == {"entrypoint.args": "['--lr', 1]"}


@pytest.mark.slow
def test_a_failed_run_among_others(shell: Shell) -> None:
    started = sweep(train, [{"lr": 1}, {"lr": -1}, {"lr": 3}], **LOCAL)
    with pytest.raises(RunFailed, match="lr is -1") as raised:
        started.results(TIMEOUT)
    assert isinstance(raised.value.__cause__, ValueError)
    first, failed, last = started.results(return_exceptions=True)
    assert (first, last) == ([1], [3])
    assert isinstance(failed, RunFailed)


@pytest.mark.slow
def test_found_again_by_name_and_cancelled(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.write({"train.py": WAITS, "elsewhere/keep": ""})
    sweep(job("w"), {"nodes": [1, "1..2"]}, executor="local")
    monkeypatch.chdir("elsewhere")
    again = Runs.open("w")
    assert [run.name for run in again] == ["w-000", "w-001"]
    assert "nodes=1..2" in repr(again)
    with pytest.raises(TimeoutError):
        again.wait(0.1)
    assert {status.phase for status in again.cancel()} == {"closed"}
    eventually(lambda: shell.processes() == {})
    with pytest.raises(ConfigError, match="v: no such sweep; a run v-000"):
        Runs.open("v")
    shutil.rmtree(again[1].directory / "rendezvous")
    with pytest.raises(ConfigError, match="contains no run any more"):
        Runs.open("w")


def made(directory: Path, name: str, *numbers: int) -> list[Path]:
    """Make runs of a sweep without agents, and record them."""
    found = [directory / f"{name}-{number:03}" for number in numbers]
    for path in found:
        RunPaths(path).register.mkdir(parents=True)
        record_run(path)
    return found


def test_runs_of_an_earlier_sweep_with_the_same_name_are_left_out(shell: Shell) -> None:
    made(shell.directory / "old", "w", 0, 1, 2, 3)
    ours = made(shell.directory / "runs", "w", 0, 1)
    assert [run.directory for run in Runs.open("w")] == ours
    shutil.rmtree(shell.directory / "old")
    (shell.directory / "old").mkdir()
    assert [run.directory for run in Runs.open("w")] == ours


def test_runs_are_in_the_order_of_their_numbers(shell: Shell) -> None:
    made(shell.directory / "runs", "w", 1000, 998, 999)
    made(shell.directory / "runs", "w-2", 0)
    assert [run.name for run in Runs.open("w")] == ["w-998", "w-999", "w-1000"]


WRONG = {
    "no-points": (train, [], "the points of the sweep are"),
    "grid-of-one-value": (train, {"lr": 0.1}, r"lr is 0\.1; write a list of values"),
    "grid-of-a-text": (train, {"lr": "0.1"}, "lr is '0.1'; write a list of values"),
    "points-no-mappings": (train, [0.1], "the points of the sweep are"),
    "unknown-argument": (
        train,
        [{"lr": 1}, {"lrr": 2}],
        r"point 1, lrr=2: train\(\) does not accept these arguments: missing a",
    ),
    "unpicklable-argument": (train, [{"lr": (x for x in ())}], "point 0, .*: the function or its arguments cannot be"),
    "unknown-key": ("job", [{"nodes": 1}, {"node": 2}], "point 1, node=2: .*did you mean nodes"),
    "name-in-a-point": ("job", [{"run.name": "a"}], "a point cannot set the name of a run"),
    "script-missing": ("job", [{}, {"entrypoint.script": "tran.py"}], r"point 1, .*did you mean train\.py"),
    "script-broken": ("job", [{}, {"entrypoint.script": "wrong.py"}], r"point 1, .*wrong\.py:1: "),
}


@pytest.mark.parametrize(("what", "points", "message"), [pytest.param(*row, id=id) for id, row in WRONG.items()])
def test_everything_is_checked_before_the_first_starts(what: Any, points: Any, message: str, shell: Shell) -> None:
    shell.write({"train.py": "", "wrong.py": "def f(:\n"})
    before = shell.listing()
    with pytest.raises(ConfigError, match=message):
        sweep(job() if what == "job" else what, points, executor="local")
    assert shell.listing() == before


def test_a_name_that_is_taken(shell: Shell) -> None:
    shell.write({"train.py": "", "runs/r-001/keep": ""})
    with pytest.raises(
        ConfigError, match=r"point 1, nodes=2: .*runs/r-001: exists already; set another name of the sweep"
    ):
        sweep(job(), {"nodes": [1, 2]}, executor="local")
    assert not (shell.directory / "runs" / "r-000").exists()


@pytest.mark.slow
@pytest.mark.parametrize("refusal", [SlurmError("too many jobs"), KeyboardInterrupt("")], ids=["refused", "interrupt"])
def test_those_before_a_refused_one_are_cancelled(
    refusal: BaseException, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.write({"train.py": WAITS})
    monkeypatch.setattr(runs, "start", refuses_the_third(refusal))
    with pytest.raises(
        type(refusal), match=r"r-002: .*; r-000 to r-001 were started and are cancelled; .* remain in .*/runs"
    ):
        sweep(job(), [{}] * 4, executor="local")
    eventually(lambda: shell.processes() == {})
    assert [Run.open(f"r-00{number}").status().phase for number in (0, 1)] == ["closed", "closed"]


def refuses_the_third(refusal: BaseException) -> Callable[..., Run]:
    count = iter(range(4))

    def start(*args: Any, **keywords: Any) -> Run:
        if next(count) == 2:
            raise refusal
        return launch.start(*args, **keywords)

    return start


def test_a_refused_first_one_leaves_nothing(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.write({"train.py": ""})
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SlurmError, match=r"r-000: sbatch: not found.*; nothing was started"):
        sweep(job(), [{}, {}])
    assert not (shell.directory / "runs").exists()
