"""The test cluster itself: hosts are separate, faults have their effects, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pytest import MonkeyPatch

from tests.cluster import ClusterError, ClusterTimeout, SlurmCluster, presets
from tests.cluster.waiting import wait_until

pytestmark = pytest.mark.slow

FreshCluster = Callable[..., SlurmCluster]
EVERY_NODE_LIVES = "srun --no-kill --kill-on-bad-exit=0 --wait=0 bash -c 'echo up $(hostname); exec sleep 300'"


def test_every_node_is_a_host_of_its_own(cluster: SlurmCluster) -> None:
    fact = "$(hostname) $SLURMD_NODENAME $(cat /proc/sys/kernel/random/boot_id) $(hostname -i)"
    lines = cluster.run("srun", "-N4", "sh", "-c", f"echo {fact}").splitlines()
    names, slurm_names, boots, addresses = zip(*map(str.split, lines), strict=True)
    assert sorted(names) == sorted(slurm_names) == cluster.nodes
    assert len(set(boots)) == len(set(addresses)) == 4


def test_nodes_reach_each_other_by_name_until_the_network_is_cut(cluster: SlurmCluster) -> None:
    listen = (
        "import socket; s = socket.create_server(('n1', 7000)); print('up', flush=True); [s.accept() for _ in 'ab']"
    )
    job = cluster.submit(f'srun -u {sys.executable} -c "{listen}"', "-w", "n1")
    cluster.wait_output(job, "up")
    connect = ("srun", "-w", "n2", sys.executable, "-c", "import socket; socket.create_connection(('n1', 7000), 1)")
    cluster.run(*connect)
    cluster.cut(1)
    with pytest.raises(ClusterError, match=r"timed out|No route"):
        cluster.run(*connect)
    cluster.heal(1)
    cluster.run(*connect)


def test_killed_node_leaves_the_others_running(cluster: SlurmCluster) -> None:
    job = cluster.submit(EVERY_NODE_LIVES, "-N4", "--no-kill")
    for name in cluster.nodes:
        cluster.wait_output(job, f"up {name}")
    before = {node: cluster.job_pids(job, node) for node in (1, 2, 4)}
    cluster.fail_node(3)
    assert cluster.node_pids(3) == set()
    assert cluster.node_state(3).startswith("down")
    assert cluster.job(job)["NodeList"] == "n[1-2,4]"
    assert cluster.job_state(job) == "RUNNING"
    assert {node: cluster.job_pids(job, node) for node in (1, 2, 4)} == before
    assert all(before.values())


@pytest.mark.parametrize("fail", [SlurmCluster.fail_node, SlurmCluster.power_off], ids=["fail", "power_off"])
def test_dead_node_returns_idle(cluster: SlurmCluster, fail: Callable[[SlurmCluster, int], None]) -> None:
    boot = ("srun", "-w", "n2", "cat", "/proc/sys/kernel/random/boot_id")
    before = cluster.run(*boot)
    cluster.wait_idle()  # a node that dies while a job ends on it stays "completing" for a minute
    fail(cluster, 2)
    assert not cluster.node_running(2)
    cluster.start_node(2)
    cluster.wait_idle()
    assert cluster.run(*boot) != before


def test_slurm_detects_a_dead_node(fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(nodes=2, extra_conf="SlurmdTimeout=6\nMessageTimeout=3")
    cluster.power_off(2)
    cluster.wait_down(2)
    # A controller that gets no processor for longer than these time-outs calls n1 down too, until it answers.
    wanted = {"n1": "idle", "n2": "down*"}  # *: it does not respond
    wait_until("n1 idle and n2 down", cluster.node_states, lambda seen: seen == wanted, 60, cluster.logs)


def test_node_set_down_and_resumed(cluster: SlurmCluster) -> None:
    cluster.set_down(1)
    cluster.wait_down(1)
    cluster.resume(1)
    cluster.wait_idle()


def test_drained_node_keeps_its_job_and_gets_no_other(cluster: SlurmCluster) -> None:
    job = cluster.submit("echo up; sleep 300", "-w", "n1")
    cluster.wait_output(job, "up")
    cluster.drain(1)
    assert cluster.node_state(1) == "draining"
    assert cluster.job_state(job) == "RUNNING"
    cluster.run("scancel", job)
    cluster.wait_job(job, "CANCELLED")
    wait_until("drained", lambda: cluster.node_state(1), lambda seen: seen == "drained", 30, cluster.logs)
    cluster.resume(1)
    cluster.wait_idle()


@pytest.mark.parametrize(
    ("partition", "state", "warned"),
    [("low", "PENDING", False), ("graceful", "PENDING", True), ("cancelled", "PREEMPTED", True)],
)
def test_a_job_in_the_high_partition_takes_the_nodes_of_others(
    fresh_cluster: FreshCluster, partition: str, state: str, warned: bool
) -> None:
    cluster = fresh_cluster(nodes=1, extra_conf=f"{presets.QUICK}\n{presets.PREEMPTION}".replace("=20", "=3"))
    lingers = "srun bash -c 'trap \"echo warned\" TERM; echo up; while true; do sleep 0.1; done'"
    job = cluster.submit(lingers, "-p", partition, "--requeue", "--exclusive")
    cluster.wait_output(job, "up")
    high = cluster.submit("echo high; sleep 300", "-p", "high", "--exclusive")
    if warned:
        cluster.wait_output(job, "warned")
        assert cluster.job_state(job) == "RUNNING"
    cluster.wait_output(high, "high")
    wait_until("preempted", lambda: cluster.job_state(job), lambda seen: seen == state, 30, cluster.logs)


@pytest.mark.slow
def test_an_exceeded_time_limit_ends_the_job(cluster: SlurmCluster) -> None:
    job = cluster.submit("echo up; sleep 300", "-t", "5")
    cluster.wait_output(job, "up")
    cluster.limit(job, 1)
    cluster.wait_job(job, "TIMEOUT", timeout=60)


def test_an_unreachable_controller_does_not_affect_jobs(cluster: SlurmCluster) -> None:
    job = cluster.submit("while sleep 0.05; do echo tick; done")
    cluster.wait_output(job, "tick")
    cluster.cut_controller()
    ticks = cluster.output(job)
    wait_until("a tick", lambda: cluster.output(job), lambda seen: seen != ticks, 30, cluster.logs)
    cluster.heal_controller()
    assert cluster.job_state(job) == "RUNNING"


def test_a_frozen_node_does_nothing(cluster: SlurmCluster) -> None:
    job = cluster.submit("while sleep 0.05; do echo tick; done", "-w", "n1")
    cluster.wait_output(job, "tick")
    cluster.freeze_node(1)
    ticks = cluster.output(job)
    with pytest.raises(ClusterTimeout):
        wait_until("a tick", lambda: cluster.output(job), lambda seen: seen != ticks, 0.5, cluster.logs)
    cluster.thaw_node(1)
    wait_until("a tick", lambda: cluster.output(job), lambda seen: seen != ticks, 30, cluster.logs)


def test_requeue_keeps_the_job_id_and_counts_restarts(cluster: SlurmCluster) -> None:
    job = cluster.submit("echo job $SLURM_JOB_ID restart ${SLURM_RESTART_COUNT:-0}; sleep 300", "--requeue")
    cluster.wait_output(job, f"job {job} restart 0")
    cluster.run("scontrol", "requeue", job)
    cluster.start_now(job)
    cluster.wait_output(job, f"job {job} restart 1")
    assert cluster.job(job)["Restarts"] == "1"


def test_controller_killed_and_started_keeps_jobs(cluster: SlurmCluster) -> None:
    job = cluster.submit("echo up; sleep 300")
    cluster.wait_output(job, "up")
    # The start of a job by the backfill scheduler does not make the controller save its state, but a submission does.
    before = state_saved_at(cluster)
    cluster.submit("true")
    wait_until("a saved state", lambda: state_saved_at(cluster), lambda seen: seen > before, 30, cluster.logs)
    cluster.kill_controller()
    assert not cluster.controller_running
    cluster.start_controller()
    assert cluster.job_state(job) == "RUNNING"


def state_saved_at(cluster: SlurmCluster) -> int:
    state = cluster.path / "state" / "job_state"
    return state.stat().st_mtime_ns if state.exists() else 0


def test_gpus_are_assigned(fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(nodes=2, gpus=4)
    seen = cluster.run("srun", "-N2", "--gpus-per-node=2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert seen.splitlines() == ["0,1", "0,1"]


def test_a_job_with_another_end_is_reported_at_once(cluster: SlurmCluster) -> None:
    job = cluster.submit("echo why; exit 3")
    with pytest.raises(ClusterError, match=r"is FAILED, not TIMEOUT(.|\n)*why"):
        cluster.wait_job(job, "TIMEOUT")


def test_two_clusters_at_the_same_time(fresh_cluster: FreshCluster) -> None:
    with ThreadPoolExecutor() as threads:
        first, second = threads.map(lambda _: fresh_cluster(nodes=2), range(2))
    first.fail_node(1)
    assert second.node_states() == {"n1": "idle", "n2": "idle"}
    assert sorted(second.run("srun", "-N2", "hostname").splitlines()) == ["n1", "n2"]
    assert first.run("srun", "-N1", "hostname") == "n2"


def left_of(path: str, uplink: str) -> list[str]:
    """Return all remains of a cluster on this machine: its processes (found by its directory), its directory, its
    link."""
    pids = [entry for entry in Path("/proc").glob("[0-9]*") if path in said_at_start(entry)]
    files = [Path(path), Path("/sys/class/net", uplink)]
    return [f"process {entry.name}" for entry in pids] + [str(file) for file in files if file.exists()]


def said_at_start(process: Path) -> str:
    """Return the arguments and the environment with which a process was started."""
    try:
        return "".join((process / name).read_bytes().decode(errors="replace") for name in ("cmdline", "environ"))
    except OSError:  # it has ended
        return ""


def test_stop_leaves_nothing_behind(fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(nodes=3)
    job = cluster.submit("trap '' TERM; setsid sleep 300 & echo up; srun sleep 300", "-N3")
    cluster.wait_output(job, "up")
    cluster.power_off(3)
    cluster.freeze_node(2)
    assert len(left_of(str(cluster.path), cluster.uplink)) > 10
    cluster.stop()
    cluster.stop()
    assert left_of(str(cluster.path), cluster.uplink) == []


@pytest.mark.usefixtures("fresh_cluster")  # for its check that clusters can run here
def test_failed_start_leaves_nothing_behind(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cluster = SlurmCluster(nodes=1, extra_conf="SelectType=select/no_such")
    with pytest.raises(ClusterError, match="no_such"):  # 24.11 listens before it loads its plug-ins
        cluster.start(timeout=1)
    assert list(tmp_path.iterdir()) == []
    assert not Path("/sys/class/net", cluster.uplink).exists()


STARTS_AND_WAITS = """
from tests.cluster import SlurmCluster
cluster = SlurmCluster(nodes=2).start()
print(cluster.path, cluster.uplink, flush=True)
input()
"""


@pytest.mark.usefixtures("fresh_cluster")  # for its check that clusters can run here
def test_cluster_ends_with_the_process_that_started_it() -> None:
    program = [sys.executable, "-c", STARTS_AND_WAITS]
    root = Path(__file__).parents[2]
    with subprocess.Popen(program, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout
        path, uplink = starter.stdout.readline().split()
        assert len(left_of(path, uplink)) > 10
        starter.kill()
    wait_until("the end of the cluster", lambda: left_of(path, uplink), lambda left: not left, 30, str)


# Logs every signal that it gets in one line. It starts a child in its own session and one in another session.
FAMILY = """
import os, signal, subprocess, sys, time
name, log = sys.argv[1:]
def note(text):
    with open(log, "a") as file:
        file.write(f"{name} {text}\\n")
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: note(signal.Signals(number).name))
silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
if name == "task":
    for child in ("child", "session"):
        subprocess.Popen([sys.executable, __file__, child, log], start_new_session=child == "session", **silent)
note("up")
while True:
    time.sleep(0.1)
"""

# The plugin that tracks processes determines the receivers of a signal. proctrack/cgroup, which most sites use but not
# every machine can run, signals only the task, and kills everything.
REACHED = [
    pytest.param("linuxproc", {"task", "child", "session"}, id="linuxproc: the tree of processes"),
    pytest.param("pgid", {"task", "child"}, id="pgid: the process group"),
]


@pytest.mark.parametrize(("proctrack", "reached"), REACHED)
def test_the_receivers_of_signals_of_slurm(fresh_cluster: FreshCluster, proctrack: str, reached: set[str]) -> None:
    cluster = fresh_cluster(nodes=1, extra_conf=f"ProctrackType=proctrack/{proctrack}")
    program, log = cluster.path / "family.py", cluster.path / "signals"
    program.write_text(FAMILY)
    job = cluster.submit(f"srun -n1 {sys.executable} {program} task {log}", "--requeue")

    def wait_for(event: str, names: set[str]) -> None:
        wanted = {f"{name} {event}" for name in names}
        wait_until(
            f"{wanted}",
            lambda: log.read_text() if log.exists() else "",
            lambda seen: wanted <= set(seen.splitlines()),
            30,
            cluster.logs,
        )

    wait_for("up", {"task", "child", "session"})
    cluster.run("scancel", "--signal=USR2", f"{job}.0")
    wait_for("SIGUSR2", reached)
    cluster.run("scontrol", "requeue", job)
    wait_for("SIGTERM", reached)
    cluster.wait_job(job, "PENDING")  # KillWait later, so a delayed signal has arrived
    signalled = {line.split()[0] for line in log.read_text().splitlines() if "SIG" in line}
    assert signalled == reached
