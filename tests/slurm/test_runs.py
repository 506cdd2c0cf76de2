"""The digits job on a real cluster of four nodes: it trains, and survives faults of workers and nodes."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import hpcelastic
from hpcelastic.api.run import Run
from tests.cluster import SlurmCluster

CONFIG = Path(__file__).parents[2] / "configs" / "digits.yaml"
LONG = ["--epochs", "1000", "--step-time", "0.05"]
ENDED = 180.0
"""Time limit for the end of a run in seconds. It is long, because the machine may be busy with other tests."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def start(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch, **overrides: object) -> Run:
    """Submit the digits job on all four nodes, with steps long enough for a fault."""
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    given = {"nodes": "2..4", "entrypoint__args": ["--epochs", "12", "--step-time", "0.03", "--checkpoint-every", "10"]}
    return hpcelastic.submit(CONFIG, run__directory=str(cluster.path / "runs"), **{**given, **overrides})


def until(what: str, look: Callable[[], object], run: Run, timeout: float = 120.0) -> object:
    """Wait for the first true value of ``look``."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    logs = "\n".join(path.read_text(errors="replace") for path in (run.directory / "slurm").glob("*_log.out"))
    raise AssertionError(f"waited {timeout:g} s for {what}; {run}\n{logs}")


def trained(run: Run, round: int) -> list[str]:
    """Return the lines of epochs that were trained in ``round``."""
    return [line for line in run.logs(round=round) if " epoch " in line]


def check_success(run: Run, cluster: SlurmCluster) -> None:
    """Check that the training has succeeded and that none of its processes is left on any node."""
    assert run.wait(timeout=ENDED).phase == "succeeded"
    assert json.loads((run.directory / "result.json").read_text())["test_accuracy"] > 0.9
    job = run.status().jobs[0]
    until("the job's end", lambda: cluster.job_state(job) not in ("RUNNING", "COMPLETING"), run)
    alive = [node for node in range(1, 5) if cluster.node_running(node)]
    until("no process left", lambda: not any(cluster.job_pids(job, node) for node in alive), run)


def test_trains_on_every_free_node(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(cluster, monkeypatch)
    check_success(run, cluster)
    status = run.status()
    assert (status.world_size, status.round, status.restarts) == (4, 1, 0)
    assert cluster.job_state(status.jobs[0]) == "COMPLETED"


def test_survives_sigkill_of_a_worker(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(cluster, monkeypatch)
    until("training", lambda: trained(run, 1), run)
    workers = [pid for pid in cluster.job_pids(run.status().jobs[0], 3) if is_worker(pid)]
    os.kill(workers[0], signal.SIGKILL)
    check_success(run, cluster)
    status = run.status()
    assert (status.world_size, status.restarts) == (4, 1)
    assert any("resumed at step" in line for line in run.logs(round=2))


@pytest.mark.parametrize("node", [1, *(pytest.param(node, marks=pytest.mark.weekly) for node in (2, 3, 4))])
def test_survives_death_of_any_node(node: int, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(cluster, monkeypatch)
    until("training", lambda: trained(run, 1), run)
    cluster.fail_node(node)
    check_success(run, cluster)
    status = run.status()
    assert (status.world_size, status.restarts) == (3, 0)
    assert f"n{node}" not in [member.name for member in status.nodes]


def test_a_temporary_network_partition_costs_only_its_duration(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The neighbours of the node hear nothing from it, but all see from its lease that it is alive."""
    run = start(cluster, monkeypatch)
    until("training", lambda: trained(run, 1), run)
    cluster.cut(3)
    time.sleep(1.0)  # until earlier output shows
    before = trained(run, 1)
    time.sleep(4.0)
    assert trained(run, 1) == before, "the output of the workers uses the network"
    cluster.heal(3)
    check_success(run, cluster)
    status = run.status()
    assert (status.world_size, status.round, status.restarts) == (4, 1, 0)


@pytest.mark.parametrize("proctrack", [pytest.param("linuxproc", marks=pytest.mark.weekly), "pgid"])
def test_requeue_resumes_in_the_same_directory(
    proctrack: str, fresh_cluster: Callable[..., SlurmCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pgid, SLURM tracks and kills only the agents. Processes that they left behind would keep the nodes."""
    cluster = fresh_cluster(nodes=4, extra_conf=f"ProctrackType=proctrack/{proctrack}")
    run = start(cluster, monkeypatch)
    until("training", lambda: trained(run, 1), run)
    job = run.status().jobs[0]
    cluster.run("scontrol", "requeue", job)
    cluster.start_now(job)
    check_success(run, cluster)
    assert cluster.job(job)["Restarts"] == "1"
    assert run.status().restarts == 0
    last = max(int(line.split(".")[0][1:]) for line in run.logs())
    assert last > 1
    assert any("resumed at step" in line for line in run.logs(round=last))


def test_user_signals_to_the_job(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM sends them to the workers too. Far from the time limit, each requests a checkpoint."""
    run = start(cluster, monkeypatch, entrypoint__args=[*LONG, "--checkpoint-every", "100000"])
    until("training", lambda: trained(run, 1), run)
    job = run.status().jobs[0]
    for before, name in enumerate(("USR1", "USR2"), 1):
        cluster.run("scancel", f"--signal={name}", job)
        until("training again", lambda now=before + 1: trained(run, now), run)
        (saved,) = (line for line in run.logs(round=before) if "saved step" in line)
        (resumed,) = (line for line in run.logs(round=before + 1) if "resumed at step" in line)
        assert re.findall(r"step (\d+)", saved) == re.findall(r"at step (\d+)", resumed)
    assert (run.status().round, run.status().restarts) == (3, 0)
    assert {event["signal"] for event in run.events() if event["event"] == "signal"} == {"SIGUSR1", "SIGUSR2"}
    run.cancel()


def test_an_agent_that_dies_is_started_again_on_its_node(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM's signals reach the new agent once."""
    run = start(cluster, monkeypatch, entrypoint__args=LONG)
    until("training", lambda: trained(run, 1), run)
    (agent,) = (event["pid"] for event in run.events() if (event["event"], event["node"]) == ("agent started", "n3"))
    pid = cluster.pid_of(3, agent)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until("four nodes again", lambda: run.status().world_size == 4 and run.status().round > 1, run)
    assert {node.name: node.agent_restarts for node in run.status().nodes} == {"n1": 0, "n2": 0, "n3": 1, "n4": 0}
    (restarted,) = (event for event in run.events() if event["event"] == "agent restarted")
    assert (restarted["node"], restarted["number"], restarted["reason"]) == ("n3", 1, "killed by SIGKILL")
    assert "agent restarts 1" in command(cluster, "status", str(run.directory))
    round = run.status().round
    until("training again", lambda: trained(run, round), run)
    cluster.run("scancel", "--signal=USR2", run.status().jobs[0])
    until("the checkpoint's round", lambda: trained(run, round + 1), run)
    signalled = sorted(event["node"] for event in run.events() if event["event"] == "signal")
    assert signalled == ["n1", "n2", "n3", "n4"]
    assert run.status().restarts == 0
    run.cancel()


def test_status_logs_and_cancel(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(cluster, monkeypatch, entrypoint__args=LONG)
    until("training", lambda: trained(run, 1), run)
    job = run.status().jobs[0]
    shown = command(cluster, "status", str(run.directory))
    assert "phase      running" in shown
    assert f"{job} RUNNING" in shown
    assert all(f"n{node}" in shown for node in (1, 2, 3, 4))
    assert "[1.0] round 1, 4 ranks: epoch" in command(cluster, "logs", str(run.directory), "--rank", "0")
    assert command(cluster, "logs", str(run.directory), "--rank", "3").count("[1.0]") == 0
    assert "cancelled by" in command(cluster, "cancel", str(run.directory))
    until("the job's end", lambda: cluster.job_state(job) == "CANCELLED", run)
    until("no process left", lambda: not any(cluster.job_pids(job, node) for node in (1, 2, 3, 4)), run)
    assert run.wait(timeout=10).phase == "closed"
    with pytest.raises(hpcelastic.RunFailed, match="cancelled"):
        run.result()


def test_a_function_returns_every_ranks_value(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)

    def where(greeting: str) -> tuple[str, int, str]:
        import os

        return greeting, int(os.environ["RANK"]), os.environ["HPCELASTIC_NODE"]

    directory = str(cluster.path / "runs")
    run = hpcelastic.submit(where, "hello", nodes=3, workers__per_node=2, run__directory=directory)
    values = run.result(timeout=ENDED)
    assert [rank for _, rank, _ in values] == [0, 1, 2, 3, 4, 5]
    assert {greeting for greeting, _, _ in values} == {"hello"}
    assert len({node for _, _, node in values}) == 3


def is_worker(pid: int) -> bool:
    """Return whether the process runs the script. The fork server has the script as its last argument."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return len(words) > 2 and words[2].endswith(b"digits/train.py")


def command(cluster: SlurmCluster, *arguments: str) -> str:
    """Return the output of ``hpcelastic`` for a user."""
    return cluster.run(sys.executable, "-m", "hpcelastic", *arguments)
