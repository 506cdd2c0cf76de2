"""Bad nodes on a real cluster: a node with broken GPUs is left out and remembered until `hpcelastic forgive`."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import hpcelastic
from hpcelastic.api.run import Run
from hpcelastic.cli import main
from hpcelastic.health.incidents import Incident, IncidentKind, record
from hpcelastic.storage.paths import RunPaths
from tests.cluster import SlurmCluster, presets
from tests.health.fake_gpus import nvml

pytestmark = pytest.mark.slow

ENDED = 120.0
"""Time limit for the end of a run in seconds. It is long, because the machine may be busy with other tests."""

JOB = """\
run: {name: job}
entrypoint: {script: say.py}
nodes: 2..4
workers: {preload: []}
slurm: {gpus_per_node: 2, setup: ["export PYTHONPATH=$PWD/nvml"]}
"""
SAY = "import os; print(os.environ['SLURMD_NODENAME'], os.environ['WORLD_SIZE'])"

NVML = """
if os.environ["SLURMD_NODENAME"] == open("{path}/broken").read():
    GPUS[1]["ecc"] = 3

def nvmlEventSetWait_v2(events, milliseconds, reported=[]):
    path = "{path}/xid"
    if reported or not os.path.exists(path) or open(path).read() != os.environ["SLURMD_NODENAME"]:
        raise NVMLError_Timeout
    reported.append(94)
    return SimpleNamespace(device=1, eventData=94)
"""
"""GPU 1 of the node in file ``broken`` has ECC errors. GPU 1 of the node in file ``xid`` reports Xid 94 once."""

MEASURER = """\
import json, os, sys

if "hpcelastic.worker.node_benchmark" in sys.orig_argv:
    flops = 5e11 if os.environ["SLURMD_NODENAME"] == "n3" else 1e12
    for line in sys.stdin:
        command = json.loads(line)["do"]
        if command == "compute":
            print(json.dumps([{"device": "processors", "flops": flops, "memory": 1e11}]), flush=True)
            continue
        if command == "serve":
            print(json.dumps({"port": 1}), flush=True)
        print(json.dumps({"latency": 1e-4, "bandwidth": 1e10, "gather": None}), flush=True)
    os._exit(0)
"""
"""Takes the place of the process that measures a node, because the simulated nodes share two cores."""


@pytest.fixture
def site(fresh_cluster: Callable[..., SlurmCluster], monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """A cluster of three nodes with two GPUs each. The GPUs of n3 have ECC errors."""
    return login(fresh_cluster(nodes=3, gpus=2), monkeypatch)


def login(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """Change to the directory of a job file on the cluster."""
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(cluster.path)
    Path("job.yaml").write_text(JOB)
    Path("say.py").write_text(SAY)
    Path("broken").write_text("n3")
    nvml(cluster.path / "nvml", code=NVML.format(path=cluster.path))
    return cluster


def new_output(run: Run) -> list[str]:
    """Wait for the success of the run and return the output of its workers since the last call."""
    assert run.wait(timeout=ENDED).phase == "succeeded", run
    last = run.status().round
    return sorted(line.partition("] ")[2] for line in run.logs(round=last))


def reports(run: Run) -> str:
    return "\n".join(path.read_text() for path in sorted((run.directory / "slurm").glob("*_log.out")))


def test_a_node_with_broken_gpus_is_left_out_until_it_is_forgiven(
    site: SlurmCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run = hpcelastic.submit("job.yaml")
    assert new_output(run) == ["n1 4", "n1 4", "n2 4", "n2 4"]
    site.wait_job("1", "COMPLETED")
    assert "task 2: Exited with exit code 3" in reports(run), "srun reports it, and the run has succeeded"
    assert "[n3] node check failed: GPUs: GPU 1 has 3 uncorrected ECC errors; drain the node" in reports(run)
    assert list(run.status().incidents) == ["n3"]
    assert main(["status", "job"]) == 0
    assert "incidents  n3               excluded for 60 min  check failed" in capsys.readouterr().out

    assert hpcelastic.submit("job.yaml", resume=True, slurm__exclude="n2", nodes=1).wait(ENDED).phase == "succeeded"
    assert site.job("2")["ExcNodeList"] == "n[2-3]"
    site.wait_job("2", "COMPLETED")  # the job ends a moment after its run, and has n1 until then

    Path("broken").write_text("none")
    assert main(["forgive", "job", "n3"]) == 0
    assert capsys.readouterr().out.endswith("forgiven: n3\n")
    again = hpcelastic.submit("job.yaml", resume=True)
    assert {line.split()[0] for line in new_output(again)} == {"n1", "n2", "n3"}
    assert site.job("3")["ExcNodeList"] == "(null)"


def test_the_runs_of_all_users_of_a_record_leave_out_a_broken_node(
    site: SlurmCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory := Path("nodes").absolute()).mkdir(mode=0o700)
    shared = {"health__shared_record": str(directory)}
    assert new_output(hpcelastic.submit("job.yaml", **shared)) == ["n1 4", "n1 4", "n2 4", "n2 4"]
    site.wait_job("1", "COMPLETED")
    assert main(["nodes", "--record", str(directory)]) == 0
    assert "n3  out for 60 min   incidents: 1, users: 1, runs: 1; check failed" in capsys.readouterr().out

    assert hpcelastic.submit("job.yaml", run__name="other", **shared).wait(ENDED).phase == "succeeded"
    assert site.job("2")["ExcNodeList"] == "n3"
    site.wait_job("2", "COMPLETED")

    Path("broken").write_text("none")
    assert main(["nodes", "--record", str(directory), "n3", "--forgive"]) == 0
    assert hpcelastic.submit("job.yaml", run__name="third", **shared).wait(ENDED).phase == "succeeded"
    assert site.job("3")["ExcNodeList"] == "(null)"


def test_an_excluded_node_waits_and_joins_when_it_is_forgiven(site: SlurmCluster) -> None:
    Path("broken").write_text("none")
    Path("say.py").write_text("import os, time\nwhile not os.path.exists('enough'): time.sleep(0.1)")
    run = hpcelastic.submit("job.yaml", slurm__options={"hold": True})
    record(RunPaths(run.directory), Incident("n3", IncidentKind.CHECK, "it smokes", time.time()))
    site.run("scontrol", "release", "1")
    until(lambda: "it is excluded for" in reports(run), run)
    until(lambda: run.status().world_size == 4, run)
    assert "[n3] this node had problems recently: check failed" in reports(run)
    assert "it smokes" in reports(run)
    run.forgive("n3")
    until(lambda: run.status().world_size == 6, run)
    Path("enough").touch()
    assert run.wait(ENDED).phase == "succeeded"
    site.wait_job("1", "COMPLETED")


@pytest.mark.parametrize("remembered", [True, False], ids=["incident", "fails its check"])
def test_an_element_of_a_pool_moves_from_a_bad_node_to_another(
    remembered: bool, fresh_cluster: Callable[..., SlurmCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = login(fresh_cluster(nodes=3, gpus=2, extra_conf=presets.QUICK), monkeypatch)
    Path("broken").write_text("none" if remembered else "n1")
    Path("say.py").write_text("import os, time\nwhile not os.path.exists('enough'): time.sleep(0.1)")
    options = {"hold": True, "exclusive": True}
    run = hpcelastic.submit("job.yaml", slurm__shape="pool", slurm__options=options, nodes="1..2")
    if remembered:
        record(RunPaths(run.directory), Incident("n1", IncidentKind.CHECK, "it smokes", time.time()))
    cluster.run("scontrol", "release", "1")
    until(lambda: run.status().world_size == 4, run)
    elements = [cluster.job(name) for name in ("1_0", "1_1")]
    assert {(one["NodeList"], one["Restarts"]) for one in elements} == {("n2", "0"), ("n3", "1")}
    assert "starts again on another node than n1" in reports(run)
    Path("enough").touch()
    assert run.wait(ENDED).phase == "succeeded"
    cluster.wait_job("1_0", "COMPLETED")


def test_the_error_has_the_reason_if_no_node_passes_its_check(
    site: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcelastic.api.liveness._SLURM_POLL_INTERVAL", 0.5)
    times = {"rendezvous__lease": 2, "rendezvous__margin": 0.5, "rendezvous__poll": 0.2}
    times["rendezvous__join_timeout"] = 10  # half of it is the wait for other nodes that pass the check
    run = hpcelastic.submit("job.yaml", health__command="echo $SLURMD_NODENAME is bent; exit 1", **times)
    with pytest.raises(hpcelastic.RunFailed, match=r"n1: check failed .*n1 is bent \(exit status 1\).*n3: check"):
        run.wait(ENDED)
    site.wait_job("1", "FAILED")
    assert hpcelastic.submit("job.yaml", resume=True, **times).wait(ENDED).phase == "succeeded"
    assert site.job("2")["ExcNodeList"] == "(null)", "all nodes were bad, so the nodes are not the cause"


def test_a_node_whose_gpu_breaks_leaves_without_a_restart(site: SlurmCluster) -> None:
    Path("broken").write_text("none")
    Path("say.py").write_text(
        "import os, time\n"
        "if os.environ['SLURMD_NODENAME'] == 'n2' and os.environ['LOCAL_RANK'] == '1':\n"
        "    raise RuntimeError('CUDA error: uncorrectable ECC error encountered')\n"
        "time.sleep(60 if os.environ['WORLD_SIZE'] == '6' else 0)\n"
    )
    run = hpcelastic.submit("job.yaml", restarts__max=0)
    status = run.wait(ENDED)
    assert (status.phase, status.world_size, status.restarts) == ("succeeded", 4, 0), reports(run)
    assert list(run.status().incidents) == ["n2"] and run.status().incidents["n2"].out


def test_a_node_whose_gpu_reports_an_error_in_flight_leaves_at_the_end_of_a_step(site: SlurmCluster) -> None:
    Path("broken").write_text("none")
    Path("say.py").write_text(
        "import os, time\n"
        "from hpcelastic.training import should_stop\n"
        "while not (should_stop() or os.path.exists('enough')): time.sleep(0.05)\n"
    )
    run = hpcelastic.submit("job.yaml", restarts__max=0, health__watch_interval=0.3)
    until(lambda: run.status().world_size == 6, run)
    Path("xid").write_text("n2")
    until(lambda: run.status().world_size == 4, run)
    assert "[n2] GPUs: GPU 1 has reported Xid 94: contained ECC error" in reports(run)
    until(lambda: list(run.status().incidents) == ["n2"], run)
    assert run.status().incidents["n2"].out and "Xid 94" in run.status().incidents["n2"].reasons[0]
    Path("enough").touch()
    status = run.wait(ENDED)
    assert (status.phase, status.world_size, status.restarts) == ("succeeded", 4, 0), reports(run)


def test_a_slow_node_does_not_join_if_the_nodes_are_measured_first(site: SlurmCluster) -> None:
    Path("broken").write_text("none")
    Path("nvml/sitecustomize.py").write_text(MEASURER)
    run = hpcelastic.submit("job.yaml", health__benchmark=True)
    assert new_output(run) == ["n1 4", "n1 4", "n2 4", "n2 4"]
    assert "[n3] this node is slow: computation 50% of the median" in reports(run)
    assert run.status().incidents["n3"].out
    assert not [path.name for path in run.directory.iterdir() if path.name.startswith(".")]


def test_a_node_that_was_lost_once_is_admitted_again(site: SlurmCluster) -> None:
    Path("broken").write_text("none")
    Path("say.py").write_text("import os, time\nwhile not os.path.exists('enough'): time.sleep(0.1)")
    run = hpcelastic.submit("job.yaml")
    until(lambda: run.status().world_size == 6, run)
    site.fail_node(2)
    until(lambda: run.status().world_size == 4, run)
    until(lambda: list(run.status().incidents) == ["n2"], run)
    assert not run.status().incidents["n2"].out
    Path("enough").touch()
    assert run.wait(ENDED).phase == "succeeded"
    site.start_node(2)
    site.wait_idle()
    again = hpcelastic.submit("job.yaml", resume=True)
    assert again.wait(ENDED).world_size == 6


def until(look: Callable[[], object], run: Run) -> None:
    deadline = time.monotonic() + ENDED
    while not look():
        assert time.monotonic() < deadline, f"{run}\n{reports(run)}"
        time.sleep(0.1)
