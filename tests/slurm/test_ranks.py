"""Ranks on a real cluster: they follow its switches and do not change; jobs that share a node share nothing else."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import pytest

import hpcelastic
from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import StoreError
from hpcelastic.protocol.events import WorkersStarted
from hpcelastic.protocol.state import Member, NodeState, Phase, State, name_of
from hpcelastic.rendezvous.run import read_state
from hpcelastic.storage.events import read_events
from hpcelastic.storage.leases import read_leases
from hpcelastic.storage.paths import RunPaths
from tests.cluster import SlurmCluster, slurm_version

WORKER = """\
import json, os, pathlib, time
told = {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "HPCELASTIC_NODE", "CUDA_VISIBLE_DEVICES")}
told |= {"job": os.environ["SLURM_JOB_ID"], "mask": os.environ.get('SLURM_CPU_BIND', '').split(":")[-1]}
told |= {"cpus": sorted(os.sched_getaffinity(0)), "pid": os.getpid()}
path = pathlib.Path("told") / f"{os.environ['HPCELASTIC_ROUND']}.{told['RANK']}.json"
path.with_suffix(".draft").write_text(json.dumps(told))
path.with_suffix(".draft").rename(path)
while not pathlib.Path("finish").exists():
    time.sleep(0.1)
"""
SWITCHES = {"s1": {"n1", "n3"}, "s2": {"n2", "n4", "n5"}}
TREE = "SwitchName=s1 Nodes=n[1,3]\nSwitchName=s2 Nodes=n[2,4-5]\nSwitchName=top Switches=s[1-2]\n"
TIMEOUT = 120.0
"""Time limit for each wait in seconds. It is long, because the machine may be busy with other tests."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Site:
    """A directory that all nodes share, a run in it, and the jobs of the run."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.work = cluster.path / "work"
        (self.work / "told").mkdir(parents=True, exist_ok=True)
        (self.work / "worker.py").write_text(WORKER)
        self.run = RunPaths(self.work / "runs" / "shared")

    def submit(self, flags: str, *options: str) -> str:
        """Submit a job with one agent on each of its nodes."""
        step = "srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0"
        agent = f"{sys.executable} -m hpcelastic agent --rdzv-id shared --rdzv-endpoint ./runs {flags} worker.py"
        return self.cluster.submit(f"{step} {agent}", f"--chdir={self.work}", "--no-kill", *options)

    def until_round(self, holds: Callable[[State], object]) -> State:
        """Return the first running round for which ``holds`` is true."""

        def look() -> State | None:
            with suppress(StoreError):  # the run does not exist yet
                state = read_state(FileBackend(self.run))
                return state if state.phase is Phase.RUNNING and holds(state) else None
            return None

        return self.until("a round", look)

    def reports(self, round: int, world_size: int) -> list[dict[str, object]]:
        """Return the report of all workers of a round, by rank."""
        paths = [self.work / "told" / f"{round}.{rank}.json" for rank in range(world_size)]
        self.until("all workers", lambda: all(path.exists() for path in paths))
        return [json.loads(path.read_text()) for path in paths]

    def member(self, name: str) -> Member:
        members = [lease.member for lease in read_leases(self.run.leases, node_name=name).values()]
        return next(m for m in members if m.node_state is not NodeState.LEFT)

    def finish(self) -> None:
        (self.work / "finish").touch()
        self.until("success", lambda: read_state(FileBackend(self.run)).phase is Phase.SUCCEEDED)

    def until(self, what: str, look: Callable[[], object]) -> object:
        deadline = time.monotonic() + TIMEOUT
        while not (found := look()):
            logs = [*self.cluster.path.glob("job-*.out"), *self.run.slurm.glob("*_log.out")]
            outputs = "\n".join(path.read_text(errors="replace") for path in logs)
            assert time.monotonic() < deadline, f"waited {TIMEOUT:g} s for {what}:\n{outputs}"
            time.sleep(0.1)
        return found


def names(state: State) -> list[str]:
    return [p.name for p in state.participants]


def switch_of(node: str) -> str:
    return next(switch for switch, nodes in SWITCHES.items() if node in nodes)


def test_ranks_follow_the_switches_and_do_not_change_when_a_node_is_replaced(
    fresh_cluster: Callable[..., SlurmCluster],
) -> None:
    site = Site(fresh_cluster(nodes=5, topology=TREE))
    site.submit("--nnodes 4:4 --preload ''", "--nodes=5")
    first = site.until_round(lambda state: True)
    assert {p.name: p.topology for p in first.participants} == {n: f"top.{switch_of(n)}" for n in names(first)}
    assert len(list(groupby(map(switch_of, names(first))))) == 2, names(first)
    (spare,) = {"n1", "n2", "n3", "n4", "n5"} - set(names(first))
    lost = next(name for name in names(first) if name != "n1")
    site.cluster.fail_node(int(lost[1:]))
    second = site.until_round(lambda state: state.round > first.round)
    assert names(second) == [spare if name == lost else name for name in names(first)]
    site.finish()


GROUPS = """\
run: {name: shared}
entrypoint: {script: worker.py}
nodes: {min: 2, max: 4, spares: 1, multiple: 2, within: switch}
"""


def test_each_group_of_nodes_stays_under_one_switch(
    fresh_cluster: Callable[..., SlurmCluster], enter: Callable[[SlurmCluster], SlurmCluster]
) -> None:
    site = Site(enter(fresh_cluster(nodes=5, topology=TREE)))
    Path("job.yaml").write_text(GROUPS)
    run = hpcelastic.submit("job.yaml")
    first = site.until_round(lambda state: len(state.participants) == 4)
    assert sorted(map(sorted, groups_of(first)))[0] == ["n1", "n3"]
    (spare,) = SWITCHES["s2"] - set(names(first))
    lost = next(name for name in names(first) if name in SWITCHES["s2"])
    site.cluster.fail_node(int(lost[1:]))
    second = site.until_round(lambda state: state.round > first.round)
    assert names(second) == [spare if name == lost else name for name in names(first)]
    site.cluster.fail_node(3)
    third = site.until_round(lambda state: state.round > second.round)
    assert groups_of(third) == [group for group in groups_of(second) if "n1" not in group]
    assert [name_of(node) for node in third.standbys] == ["n1"], "n1 makes no group alone"
    site.finish()
    assert run.wait(TIMEOUT).phase == "succeeded"


BLOCKS = "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2\n"


@pytest.mark.skipif(slurm_version() < (24, 5), reason="topology/block with --segment needs SLURM 24.05")
def test_each_group_of_nodes_stays_in_one_block(
    fresh_cluster: Callable[..., SlurmCluster], enter: Callable[[SlurmCluster], SlurmCluster]
) -> None:
    site = Site(enter(fresh_cluster(nodes=4, topology=BLOCKS, extra_conf="TopologyPlugin=topology/block")))
    # Of a range of nodes, SLURM allocates only the fewest with topology/block.
    text = GROUPS.replace("min: 2, max: 4, spares: 1", "min: 4, max: 4").replace("switch", "block")
    Path("job.yaml").write_text(f"{text}slurm: {{segment: 2}}\n")
    run = hpcelastic.submit("job.yaml")
    first = site.until_round(lambda state: True)
    assert {p.name: p.topology for p in first.participants} == {"n1": "b1", "n2": "b1", "n3": "b2", "n4": "b2"}
    assert sorted(map(sorted, groups_of(first))) == [["n1", "n2"], ["n3", "n4"]]
    site.finish()
    assert run.wait(TIMEOUT).phase == "succeeded"


def groups_of(state: State) -> list[list[str]]:
    return [names(state)[start : start + 2] for start in range(0, len(state.participants), 2)]


@pytest.mark.parametrize("preload", ["json", ""], ids=["forked", "fresh"])
@pytest.mark.parametrize("array", [True, False], ids=["array", "jobs"])
def test_two_jobs_on_one_node_share_nothing_else(
    array: bool, preload: str, fresh_cluster: Callable[..., SlurmCluster]
) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two jobs need two processors")
    cluster = fresh_cluster(nodes=1, cpus=2, gpus=4, extra_conf="TaskPlugin=task/affinity")
    site = Site(cluster)
    flags = f"--nnodes 1:2 --nproc-per-node auto --preload '{preload}' --rdzv-conf last_call=1"
    options = ["--cpus-per-task=1", "--gpus-per-node=2"]
    for extra in [["--array=0-1"]] if array else [[], []]:
        site.submit(flags, *options, *extra)

    both = site.until_round(lambda state: len(state.participants) == 2)
    workers = site.reports(both.round, 4)
    check_shares(site, both, workers)
    hosts = {site.member(name).host or name for name in names(both)}
    assert hosts == {"n1"}
    lost = names(both)[1]
    assert lost in ({"n1_0", "n1_1"} if array else {"n1", f"n1.j{workers[2]['job']}"})

    gone = site.member(lost)
    task = [pid for pid in cluster.job_pids(str(workers[2]["job"]), 1) if is_agent(pid)]
    for pid in sorted(task):  # first the process that would start the agent again
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    alone = site.until_round(lambda state: state.round > both.round)
    assert names(alone) == names(both)[:1]
    assert gone.node not in [p.node for p in alone.participants]
    assert [report["job"] for report in site.reports(alone.round, 2)] == [workers[0]["job"]] * 2
    site.finish()


def check_shares(site: Site, state: State, workers: list[dict[str, object]]) -> None:
    """Check that each worker has the processors and GPUs that SLURM has given its job, and no others."""
    shares = {}
    for report in workers:
        cpus = [bit for bit in range(64) if int(str(report["mask"]), 16) >> bit & 1]
        assert report["cpus"] == cpus, "the worker is not bound as SLURM has bound the step"
        shares[report["job"]] = (cpus, str(report["CUDA_VISIBLE_DEVICES"]).split(","))
    (cpus, gpus), (other_cpus, other_gpus) = shares.values()
    assert not set(cpus) & set(other_cpus)
    assert sorted(gpus + other_gpus) == ["0", "1", "2", "3"]
    assert [report["LOCAL_RANK"] for report in workers] == ["0", "1", "0", "1"]
    found = {
        logged.node: (logged.event.cpus, logged.event.gpus)
        for logged in read_events(site.run.events)
        if isinstance(logged.event, WorkersStarted) and logged.event.round == state.round
    }
    assert found == {
        str(report["HPCELASTIC_NODE"]): (
            ",".join(map(str, shares[report["job"]][0])),
            ",".join(shares[report["job"]][1]),
        )
        for report in workers
    }


def is_agent(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"hpcelastic" in words and b"agent" in words and not words[0].endswith(b"srun")
