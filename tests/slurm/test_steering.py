"""A run on a real cluster is steered while it trains, and loses no step."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import hpcelastic
from tests.cluster import SlurmCluster, presets
from tests.slurm.scenario.stage import SHAPES, Setting, Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

FreshCluster = Callable[..., SlurmCluster]


@pytest.fixture
def staged(fresh_cluster: FreshCluster) -> Iterator[Callable[..., Stage]]:
    """Start a run of so many nodes on a cluster of four, and wait until it trains on all of them."""
    with ExitStack() as stages:

        def start(shape: str, nodes: str) -> Stage:
            cluster = fresh_cluster(nodes=4, extra_conf=presets.QUICK)
            stage = stages.enter_context(Stage(cluster, Setting(shape, nodes)))
            stage.until_world(int(nodes.rpartition(".")[2]))
            return stage

        yield start


def command(stage: Stage, *arguments: str) -> str:
    """Return the output of ``hpcelastic`` for a user."""
    return stage.cluster.run(sys.executable, "-m", "hpcelastic", *arguments)


def ends_well(stage: Stage, last: int, world: int) -> None:
    """Wait for the success of the run in that round. No step was trained twice, and its jobs are COMPLETED."""
    verdict = stage.verdict()
    stage.leaves_nothing()
    assert verdict.steps_lost == 0, stage.describe()
    status = stage.run.status()
    assert (status.round, status.world_size, status.restarts) == (last, world, 0), stage.describe()
    assert stage.job_states() == {"COMPLETED"}


@contextmanager
def agent_in_place(stage: Stage, node: int) -> Iterator[None]:
    """Run another agent on a node of the run's job until the end of the context."""
    where = ["--overlap", "--no-kill", "-N1", "-n1", f"--jobid={stage.job_on(node)}", f"--nodelist=n{node}"]
    what = [sys.executable, "-m", "hpcelastic", "agent", "--run-dir", str(stage.run.directory)]
    with subprocess.Popen(["srun", *where, *what], env=stage.cluster.env, stdin=subprocess.DEVNULL) as agent:
        try:
            yield
            agent.wait(60)
        finally:
            agent.kill()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_drained_node_leaves_and_returns(shape: str, staged: Callable[..., Stage]) -> None:
    stage = staged(shape, "2..3")
    first, node = stage.run.status().round, stage.node_of(rank=1)
    assert "leaves at the end of a step" in command(stage, "drain", f"n{node}", str(stage.run.directory))
    second = stage.until_world(2, after_round=first)
    assert node not in {stage.number(note.node) for note in stage.newest()}
    assert f"drained    n{node}" in command(stage, "status", str(stage.run.directory))
    with pytest.raises(hpcelastic.ConfigError, match=r"n9: is not in this run; known nodes: n\d"):
        stage.run.drain("n9")
    assert stage.run.drain(f"n{node}", undo=True) == ()
    with ExitStack() as agents:
        if shape == "pool":
            stage.until("the element's end", lambda: "COMPLETED" in stage.job_states())
            assert stage.run.scale(3).submitted == 1
        else:
            agents.enter_context(agent_in_place(stage, node))
        stage.until_world(3, after_round=second)
        ends_well(stage, last=first + 2, world=3)


def test_a_pool_shrinks_and_grows(staged: Callable[..., Stage]) -> None:
    stage = staged("pool", "1..3")
    first = stage.run.status().round
    assert command(stage, "scale", str(stage.run.directory), "--nodes", "2") == (
        "run: 2 nodes wanted, 3 running, 1 of them leaving"
    )
    second = stage.until_world(2, after_round=first)
    stage.until("the element's end", lambda: "COMPLETED" in stage.job_states())
    assert "scaled     to 2 nodes" in command(stage, "status", str(stage.run.directory))
    assert command(stage, "scale", str(stage.run.directory), "--nodes", "3") == (
        "run: 3 nodes wanted, 2 running, 1 submitted as job 4"
    )
    stage.until_world(3, after_round=second)
    ends_well(stage, last=first + 2, world=3)


def test_an_allocation_grows_by_jobs_in_the_same_directory(
    staged: Callable[..., Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, home = staged("allocation", "2"), Path.cwd()
    first = stage.run.status().round
    with pytest.raises(hpcelastic.ConfigError, match=r"1 is fewer than nodes\.min, 2"):
        stage.run.scale(1)
    monkeypatch.chdir(tmp_path)
    assert str(stage.run.scale(3)) == "run: 3 nodes wanted, 2 running, 1 submitted as job 2"
    stage.until_world(3, after_round=first)
    assert stage.cluster.job("2_0")["WorkDir"] == str(home)
    assert str(stage.run.scale(3)) == "run: 3 nodes wanted, 3 running"
    ends_well(stage, last=first + 1, world=3)


def test_pending_jobs_are_cancelled_if_fewer_nodes_are_requested(staged: Callable[..., Stage]) -> None:
    stage = staged("pool", "2..3")
    assert stage.run.scale(6).submitted == 3
    stage.until_world(4)
    assert str(stage.run.scale(4)) == "run: 4 nodes wanted, 4 running, 2 pending cancelled"
    stage.until("only running elements", lambda: set(stage.cluster.jobs().values()) == {"RUNNING"})
    verdict = stage.verdict()
    stage.leaves_nothing()
    assert verdict.steps_lost == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_a_checkpoint_is_saved_on_request(shape: str, staged: Callable[..., Stage]) -> None:
    stage = staged(shape, "2..3")
    first = stage.run.status().round
    stage.until("workers that answer requests", lambda: _asked(stage, "workers poll"))
    assert f"round {first} ends at the end of a step" in command(stage, "checkpoint", str(stage.run.directory))
    stage.until_world(3, after_round=first)
    assert any(note.kind == "saved" for note in stage.notes() if note.round == first)
    ends_well(stage, last=first + 1, world=3)


def _asked(stage: Stage, event: str) -> bool:
    return any(found["event"] == event for found in stage.run.events())
