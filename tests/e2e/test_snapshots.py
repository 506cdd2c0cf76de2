"""States that no surviving rank holds whole: snapshots in the memory of agents, and copies on another node."""

import json
import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hpcelastic.training.seals import find_damage
from tests.cli.shell import TIMEOUT, Shell, eventually, shell_in
from tests.e2e.rounds import Run
from tests.e2e.test_elastic import begins, check_result
from tests.e2e.test_sharded_states import SHARDED, changed

pytestmark = pytest.mark.slow

EVERY_STEP = changed(SHARDED, {"save_every=SAVE_EVERY": "save_every=SAVE_EVERY, snapshot=1"})
"""FSDP2 with a snapshot in each step."""

PLAIN = """
import sys, time
from pathlib import Path
from hpcelastic.training import Checkpoints, context

checkpoints = Checkpoints()
found = checkpoints.load()
Path(f"notes/{context().round}.{context().rank}.from").write_text(f"[{found.step if found else 0}]")
Path(f"notes/{context().round}.{context().rank}.memory").write_text(str(bool(found and found.in_memory)))
step = begin = found.state["step"] if found else 0
while not Path("finish").exists():
    step += 1
    if context().rank == 0:
        checkpoints.snapshot(step, {"step": step})
    if step == begin + 3:
        Path(f"notes/{context().round}.{context().rank}.up").write_text("1")
    time.sleep(0.05)
    if Path("crash").exists() and context().round == 1:
        assert checkpoints.is_kept(60)
        sys.exit(7)
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


def steps(run: Run) -> int:
    """Return the number of steps that are complete in the newest round."""
    return max((int(text) for text in run.notes(f"{run.newest_round()}.*.step").values()), default=0)


def counting(code: str) -> str:
    """Let each rank note the steps that are complete, once the snapshot of the step before is kept."""
    return changed(
        code,
        {
            "GlobalBatches, context": "GlobalBatches, context, snapshot_channel",
            "        time.sleep(PAUSE / 1000)": "        assert snapshot_channel.snapshot_channel().is_kept(60)\n"
            '        note("step", str(step + 1))\n        time.sleep(PAUSE / 1000)',
        },
    )


def checkpoint_files(shell: Shell) -> list[Path]:
    return sorted((shell.directory / "runs/r/checkpoints").glob("*.pt"))


@pytest.mark.parametrize(("victim", "source"), [(0, "memory"), (2, "buddy")], ids=["0", "2"])
def test_the_state_of_a_lost_node_is_on_another(shell: Shell, victim: int, source: str) -> None:
    """Node i has its copies on node i + 1. The others move up, and each reads the parts that are nearest to its rank.

    If node 0 is lost, nodes 1 and 2 have all parts that they need in the memory of their own agents. If node 2 is lost,
    node 0 needs a part that only node 1 has, and the other way round.
    """
    run = Run(shell, counting(EVERY_STEP), 3, script_arguments=("50", "0", "0", "0"))
    eventually(lambda: steps(run) >= 5)
    done = steps(run)
    run.kill_node(index_of(run, victim))
    run.await_round(2, 2)
    (begin,) = set(begins(run, 2).values())
    assert begin >= done - 2
    assert checkpoint_files(shell) == []  # nothing came from there
    run.finish()
    check_result(shell, EVERY_STEP)
    assert {event["source"] for event in run.events("training totals") if event["round"] == 2} == {source}


def index_of(run: Run, rank: int) -> int:
    """Return the index of the agent with a rank in round 1. On a busy machine it may be another number."""
    (node,) = {event["node"] for event in run.events("workers started") if event["group_rank"] == rank}
    return next(index for index, agent in enumerate(run.agents) if agent.node_name == node)


@pytest.mark.parametrize(("victims", "lost"), [((0, 2), False), ((1, 2), True)], ids=["not buddies", "buddies"])
def test_two_nodes_are_lost_at_once(shell: Shell, victims: tuple[int, int], lost: bool) -> None:
    """Node i has its copies on node i + 1, in the order of ranks. Every fourth step is on disk too."""
    run = Run(shell, counting(EVERY_STEP), 4, script_arguments=("50", "4", "0", "0"))
    eventually(lambda: steps(run) >= 7)
    done = steps(run)
    by_rank = {agent.node_name: agent for agent in run.agents}
    ranks = {event["node"]: event["group_rank"] for event in run.events("workers started")}
    for name in [name for name, rank in ranks.items() if rank in victims]:
        by_rank[name].kill()
        run.agents.remove(by_rank[name])
    run.await_workers(2)
    (begin,) = set(begins(run, run.newest_round()).values())
    if lost:
        assert begin % 4 == 0
    else:
        assert begin >= done - 2
    said = re.search(
        r"step \d+ is lost with the memory of several nodes; continuing from step \d+ on disk", run.finish()
    )
    assert lost == bool(said)
    check_result(shell, EVERY_STEP)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=[pytest.mark.weekly, pytest.mark.timeout(900)]) for seed in range(1, 50))]
)
def test_random_faults_do_not_change_the_result(shell: Shell, seed: int) -> None:
    """Workers and nodes are killed, and nodes join, in any step. Each process holds a part of the state."""
    run = Run(shell, EVERY_STEP, 3, "--max-restarts=100", script_arguments=("4", "50", "0", "0"))
    run.disturb(random.Random(seed), faults=8, nodes=3)
    run.finish()
    check_result(shell, EVERY_STEP)


def test_without_the_network_training_goes_on(shell: Shell) -> None:
    run = Run(shell, counting(EVERY_STEP), 2, "--no-notifications", script_arguments=("50", "2", "0", "0"))
    eventually(lambda: steps(run) >= 5)
    run.kill_node(1)
    run.await_round(2, 1)
    (begin,) = set(begins(run, 2).values())
    assert begin % 2 == 0 and begin > 0
    output = run.finish()
    assert output.count("snapshots are in the memory of this node only") == 1
    check_result(shell, EVERY_STEP)


def test_a_plain_script_continues_from_memory_after_a_crash(shell: Shell) -> None:
    run = Run(shell, PLAIN, 1)
    (shell.directory / "crash").touch()
    run.await_round(2, 1)
    assert begins(run, 2)[0] >= 3
    assert run.note("2.0.memory") == "True"
    assert checkpoint_files(shell) == []
    run.finish()
    assert [event["source"] for event in run.events("training totals") if event["round"] == 2] == ["memory"]


def test_the_newest_snapshot_is_on_disk_when_a_run_is_preempted(shell: Shell) -> None:
    """The script never asks whether it must stop."""
    run = Run(shell, PLAIN, 1)
    eventually(lambda: run.note("1.0.up"))
    (agent,) = run.agents
    agent.send_signal(signal.SIGTERM)
    agent.communicate(timeout=TIMEOUT)
    newest = checkpoint_files(shell)[-1]
    assert find_damage(newest) is None
    assert torch.load(newest, weights_only=True)["step"] >= 2
    run.agents = [run.start("n1", "--nnodes=1")]
    run.await_round(2, 1)
    assert f"[{torch.load(newest, weights_only=True)['step']}]" == run.note("2.0.from")
    assert run.note("2.0.memory") == "False"
    run.finish()


def test_a_sharded_state_is_on_disk_when_all_nodes_fail(shell: Shell) -> None:
    """The parts of the node that was lost come from its copies."""
    code = changed(
        counting(EVERY_STEP), {"time.sleep(PAUSE": 'os._exit(3) if Path("fail").exists() else time.sleep(PAUSE'}
    )
    run = Run(shell, code, 2, script_arguments=("50", "0", "0", "0"))
    eventually(lambda: steps(run) >= 3)
    (shell.directory / "fail").touch()
    for agent in run.agents:
        agent.communicate(timeout=TIMEOUT)
        assert agent.returncode != 0
    newest = checkpoint_files(shell)
    assert newest and len(newest) % 2 == 0
    assert json.dumps([find_damage(path) for path in newest]) == json.dumps([None] * len(newest))
