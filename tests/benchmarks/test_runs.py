"""Each benchmark runs with the smallest parameters and leaves no process."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    agent_cost,
    gpu,
    hangs,
    keep,
    meeting,
    metered,
    operations,
    preflight,
    recovery,
    register,
    restart,
    resume,
    scale,
    silent_node,
    stopping,
    torch_store,
    watching,
    why,
)
from benchmarks.processes import descendants, free_port, listens
from benchmarks.sides import FT_LAUNCHER, TORCHFT, why_not
from hpcelastic.api.run import Run
from hpcelastic.storage.paths import RunPaths
from tests.network.namespaces import why_no_namespaces

pytestmark = pytest.mark.nightly

needs_fuse = pytest.mark.skipif(bool(metered.unavailable()), reason=str(metered.unavailable()))


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = set(descendants(os.getpid()))
    yield
    assert set(descendants(os.getpid())) <= before


def through_json(measure: Callable[..., dict[str, Any]], parameters: object) -> dict[str, Any]:
    lines: list[str] = []
    results = measure(parameters, lines.append)
    assert lines
    return results


def test_our_phases_sum_up_to_the_whole() -> None:
    parameters = recovery.Parameters(repeat=1, timeout=120.0, scenarios=("cold start",), sides=("hpcelastic",))
    results = through_json(recovery.measure, parameters)
    (run,) = results["runs"]
    assert run["seconds"] is not None
    assert sum(run["phases"].values()) == pytest.approx(run["seconds"], abs=0.01)
    assert run["phases"]["start"] > 0
    assert len(recovery.tables(results)) == 2


@pytest.mark.weekly
@pytest.mark.parametrize("side", ["torchrun", "torchrun, plug-in", "ft_launcher"])
def test_the_recovery_of_other_launchers(side: str) -> None:
    if side == "ft_launcher" and (reason := why_not(FT_LAUNCHER)):
        pytest.skip(reason)
    parameters = recovery.Parameters(repeat=1, timeout=120.0, scenarios=("cold start",), sides=(side,))
    (run,) = through_json(recovery.measure, parameters)["runs"]
    assert (run["side"], run["seconds"] is not None) == (side, True)


@pytest.mark.nightly
def test_a_node_of_ours_is_killed_completely_and_the_others_continue() -> None:
    scenarios = ("SIGKILL of the first node", "silent node (SIGSTOP)")
    parameters = recovery.Parameters(repeat=1, timeout=120.0, scenarios=scenarios, sides=("hpcelastic",))
    results = through_json(recovery.measure, parameters)
    assert [run["scenario"] for run in results["runs"]] == list(scenarios)
    for run in results["runs"]:
        assert run["seconds"] is not None
        assert run["phases"] is not None


@pytest.mark.parametrize(
    ("grounds", "torch"),
    [pytest.param(("local",), False, id="ours"), pytest.param((), True, id="torch's", marks=pytest.mark.nightly)],
)
def test_a_round_forms(grounds: tuple[str, ...], torch: bool) -> None:
    parameters = scale.Parameters(nodes=(3,), repeat=1, grounds=grounds, torch=torch)
    results = through_json(scale.measure, parameters)
    assert [run["seconds"] is not None for run in results["runs"]] == [True]
    assert len(scale.tables(results)) == 2


def test_a_slow_side_is_not_measured_with_more_nodes() -> None:
    parameters = scale.Parameters(nodes=(2, 4), repeat=1, timeout=0.0, grounds=("local",), torch=False)
    results = through_json(scale.measure, parameters)
    assert [(run["nodes"], run["seconds"]) for run in results["runs"]] == [(2, None)]


def test_operations_of_nodes_on_the_filesystem_are_counted() -> None:
    parameters = scale.Parameters(nodes=(2,), repeat=1, grounds=("local + 2 ms",), torch=False)
    (run,) = through_json(scale.measure, parameters)["runs"]
    for kind in ("list", "create", "rename"):
        assert run["operations"][kind] > 0


def test_only_operations_in_the_directory_are_counted(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; from benchmarks.distance import Distance\n"
        "root = pathlib.Path(sys.argv[1]); distance = Distance(root, 0.0)\n"
        "os.stat('/'); os.listdir('/proc')\n"
        "(root / 'a').write_bytes(b'1'); (root / 'a').read_bytes(); os.listdir(root); os.link(root / 'a', root / 'b')\n"
        "os.replace(root / 'a', root / 'c'); (root / 'c').unlink(); (root / 'b').exists()\n"
        "fd = os.open(root / 'b', os.O_RDONLY); os.fsync(fd); os.close(fd)\n"
        "import json; print(json.dumps(distance.counts()))"
    )
    answer = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    expected = {"create": 2, "open": 2, "list": 1, "rename": 1, "remove": 1, "look up": 1, "sync": 1}
    assert json.loads(answer.stdout) == expected


@needs_fuse
def test_the_counting_filesystem() -> None:
    with metered.metered_mount() as mount:
        before = mount.counts()
        (mount.directory / "a").write_bytes(b"12345")
        os.rename(mount.directory / "a", mount.directory / "b")
        assert (mount.directory / "b").read_bytes() == b"12345"
        (mount.directory / "b").unlink()
        counts = mount.counts() - before
        assert list(mount.backing.iterdir()) == []
    assert [counts[kind] for kind in ("create", "rename", "remove", "write", "lock")] == [1, 1, 1, 1, 0]
    assert [counts[what] for what in ("bytes read", "bytes written")] == [5, 5]


@needs_fuse
def test_operations_of_real_agents() -> None:
    parameters = operations.Parameters(agents=(1,), runs=(2,), many=((2, 1),), settle=1.0, idle=5.0)
    results = through_json(operations.measure, parameters)
    assert [run["what"] for run in results["runs"]] == ["first round", "round after a failure", "idle minute"]
    assert all(run["counts"].get("list", 0) > 0 for run in results["runs"])
    assert all(results[several][0]["counts"].get("list", 0) > 0 for several in ("together", "many"))
    assert [len(table.rows) for table in operations.tables(results)] == [3, 1, 1]


@pytest.mark.parametrize(
    ("side", "parts"),
    [
        pytest.param("hpcelastic", {"agent", "guard"}, id="ours"),
        pytest.param("torchrun", {"agent"}, id="torch's", marks=pytest.mark.nightly),
    ],
)
def test_the_cost_of_an_agent(side: str, parts: set[str]) -> None:
    results = through_json(agent_cost.measure, agent_cost.Parameters(repeat=1, idle=1.0, sides=(side,)))
    assert {one["part"] for one in results["idle"]} >= parts
    assert all(one["rss"] >= one["uss"] > 0 for one in results["idle"])
    assert len(agent_cost.tables(results)) == 2


@pytest.mark.parametrize(
    ("side", "stayed"),
    [
        pytest.param("hpcelastic, Elastic", 2, id="Elastic"),
        pytest.param("hpcelastic, a plain script", 0, id="a plain script", marks=pytest.mark.weekly),
        pytest.param("torchft", 2, id="torchft", marks=pytest.mark.weekly),
    ],
)
@pytest.mark.slow
def test_the_next_step_after_a_fault(side: str, stayed: int) -> None:
    if side == "torchft" and (reason := why_not(TORCHFT)):
        pytest.skip(reason)
    parameters = resume.Parameters(repeat=1, settle=0.5, builds=(0.0,), sides=(side,), examples=())
    results = through_json(resume.measure, parameters)
    assert [one["stayed"] for one in results["faults"]] == [stayed, stayed]
    assert all(one["seconds"] > 0 for one in results["faults"])
    assert not stayed or [one["repeated"] for one in results["faults"]] == [0, 0]
    assert [len(table.rows) for table in resume.tables(results)] == [2, 1]


@pytest.mark.parametrize(("script", "stayed"), [(resume.EXAMPLES[0], 2), (resume.EXAMPLES[1], 0)])
@pytest.mark.nightly
def test_the_next_step_of_an_example(script: str, stayed: int) -> None:
    found = resume.fault(script, resume.NODE, 0.0, resume.Parameters(settle=0.5))
    assert found["stayed"] == stayed
    assert found["seconds"] > 0


@pytest.mark.parametrize(
    "side", [pytest.param("hpcelastic", id="ours"), pytest.param("torchrun", id="torch's", marks=pytest.mark.weekly)]
)
@pytest.mark.slow
def test_the_restart_of_a_worker(side: str) -> None:
    results = through_json(restart.measure, restart.Parameters(repeat=1, settle=0.5, sides=(side,)))
    assert len(results["restarts"]) == 3
    assert all(one["seconds"] > 0 for one in results["restarts"])
    assert len(restart.tables(results)[0].rows) == 1


@pytest.mark.parametrize(
    "sides",
    [
        pytest.param((register.OURS, register.KEPT, register.MEMORY), id="ours"),
        pytest.param((register.FILE, register.TCP), id="torch's", marks=pytest.mark.nightly),
    ],
)
def test_every_side_counts(sides: tuple[str, ...]) -> None:
    parameters = register.Parameters(contenders=(2,), seconds=0.5, repeat=1, operations=50, sides=sides)
    results = through_json(register.measure, parameters)
    assert {race["side"]: race["won"] > 0 for race in results["races"]} == dict.fromkeys(sides, True)
    assert len(results["growth"]) == 10 * len(sides)
    assert len(register.tables(results)) == 2


def test_every_torch_store_adds_sets_and_gets() -> None:
    results = through_json(torch_store.measure, torch_store.Parameters(operations=600))
    assert results["operations"] == 600
    ours, memory, file, tcp = results["runs"]
    assert all(len(run["seconds"]) == 100 and min(run["seconds"]) > 0 for run in results["runs"])
    assert (ours["files"] > 0, memory["files"] > 0, file["files"], tcp["files"]) == (True, True, 1, 0)
    assert len(torch_store.tables(results)[0].rows) == 4


def test_ranks_meet_in_both_stores() -> None:
    results = through_json(meeting.measure, meeting.Parameters(ranks=(8,), repeat=1))
    assert [run["side"] for run in results["runs"]] == ["hpcelastic", "torchrun"]
    assert all(run["connected"] > 0 and run["met"] > 0 for run in results["runs"])
    assert len(meeting.tables(results)[0].rows) == 3


def test_too_few_operations_are_refused() -> None:
    with pytest.raises(ValueError, match="599 operations are fewer than 100 parts of 6"):
        torch_store.measure(torch_store.Parameters(operations=599), print)


@pytest.mark.nightly
def test_a_crash_on_one_node() -> None:
    results = through_json(gpu.measure, gpu.Parameters(repeat=1, sides=("hpcelastic",), backend="gloo"))
    assert [run["crash"] is not None for run in results["runs"]] == [True]
    assert len(gpu.tables(results)) == 1


def test_the_cost_of_a_poll_in_each_step() -> None:
    results = through_json(stopping.measure, stopping.Parameters(ranks=(1, 2), calls=5, repeat=1))
    assert [(run["ranks"], run["step"]) for run in results["runs"]] == [(1, 0.0), (1, 0.02), (2, 0.0), (2, 0.02)]
    assert all(run["seconds"] > 0 for run in results["runs"])


@pytest.mark.slow
def test_the_cost_of_saves() -> None:
    results = through_json(keep.measure, keep.Parameters(mib=8, steps=2, repeat=1, settle=0.5))
    assert all(len(values) == 1 and values[0] > 0 for values in results["seconds"].values())
    (lost,) = results["lost"]
    assert lost["seconds"] > 0 and lost["repeated"] >= 0 and lost["stayed"] == 2
    assert [len(table.rows) for table in keep.tables(results)] == [8, 1]


def test_the_owner_of_a_port() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        port = listener.getsockname()[1]
        assert not listens(os.getpid(), port)
        listener.listen()
        assert listens(os.getpid(), port)
        assert not listens(os.getppid(), port)


@pytest.mark.slow
def test_a_hang_is_named_and_the_training_continues() -> None:
    results = through_json(hangs.measure, hangs.QUICK)
    assert [row[-1] for row in hangs.tables(results)[0].rows] == ["1 of 1"]
    assert results["runs"][0]["again"] is not None


@pytest.mark.slow
def test_the_others_continue_without_a_silent_node() -> None:
    parameters = silent_node.Parameters(nodes=(2,), repeat=1, settle=0.5, leases=("default",))
    results = through_json(silent_node.measure, parameters)
    (run,) = results["runs"]
    assert 0 < run["ended"] <= run["all"]
    assert [row[:2] for row in silent_node.tables(results)[0].rows] == [("2", "default")]


@pytest.mark.skipif(why_no_namespaces() is not None, reason=str(why_no_namespaces()))
def test_the_benchmark_of_nodes_finds_what_is_planted() -> None:
    results = through_json(preflight.measure, preflight.QUICK)
    (run,) = results["runs"]
    assert (len(run["planted"]), run["missed"], run["false"]) == (5, [], []), run["reports"]
    (row,) = preflight.tables(results)[0].rows
    assert row[2:] == ("5", "0", "0")


def test_a_launcher_that_does_not_start_spoils_no_other_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(scenario: object, make: type, timeout: float) -> dict[str, Any]:
        if make is int:
            raise recovery.NotStarted("training did not start within 120 s")
        return {"seconds": 1.5, "phases": None}

    monkeypatch.setattr(recovery, "sides", lambda names: ({"ours": str, "theirs": int}, []))
    monkeypatch.setattr(recovery, "_measured", measured)
    said: list[str] = []
    parameters = recovery.Parameters(repeat=2, scenarios=("cold start",), sides=("ours", "theirs"))
    results = recovery.measure(parameters, said.append)
    assert [(run["side"], run["seconds"]) for run in results["runs"]] == [("ours", 1.5)] * 2
    assert said.count("cold start: theirs: training did not start within 120 s; left out") == 2


def test_the_time_of_an_explanation() -> None:
    results = through_json(why.measure, why.Parameters(nodes=(3,), rounds=4, repeat=1))
    rows = why.tables(results)[0].rows
    assert [row[:2] for row in rows] == [("3", "why"), ("3", "goodput")]


def test_the_run_that_is_explained_is_whole(tmp_path: Path) -> None:
    why.write_run(RunPaths(tmp_path / "large"), 3, 4)
    run = Run(tmp_path / "large")
    explained, account = run.why(), run.goodput()
    assert (explained.round, explained.node, explained.rank) == (4, "n1", 1)
    assert "ValueError: bad label" in explained.cause
    assert len(account.faults) == 4 and account.node_seconds["useful"] > 0.9 * account.total


def test_the_cost_of_watching() -> None:
    results = through_json(watching.measure, watching.Parameters(pairs=2, block=0.05))
    assert all(len(run["ratios"]) == 2 and min(run["ratios"]) > 0 for run in results["runs"])
    assert len(watching.tables(results)[0].rows) == len(results["runs"])
