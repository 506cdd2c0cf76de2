"""``Checkpoints.load`` by several ranks, as real processes of a gloo group."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hpcelastic.training import Checkpoints

pytestmark = pytest.mark.slow

LOAD = """
import sys, time
import torch.distributed as dist
from hpcelastic.training import Checkpoints, checkpoints
store, rank, directory = sys.argv[1:4]

class Agent:
    "The agent of a node, which still has a checkpoint of an earlier round to publish."
    def await_agent(self):
        if rank == "1":
            time.sleep(1)
            Checkpoints(directory, round=8).save(120, {"number": 120})

    def kept(self, directory):
        return None

if sys.argv[4:]:
    checkpoints.snapshot_channel = Agent
dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
found = Checkpoints(directory, round=9).load()
print(found and (found.round, found.step, found.state["number"]))
dist.destroy_process_group()
"""


def load(tmp_path: Path, *directories: Path, arguments: tuple[str, ...] = ()) -> list[tuple[int, str, str]]:
    """Return exit status, output and errors of ranks 0 and 1, each of which lists its own directory."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LOAD, str(tmp_path / "store"), str(rank), str(directory), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, directory in enumerate(directories)
    ]
    outputs = [rank.communicate(timeout=60) for rank in ranks]
    return [(rank.returncode, *output) for rank, output in zip(ranks, outputs, strict=True)]


def save(directory: Path, round: int, step: int) -> None:
    Checkpoints(directory, round=round).save(step, {"number": step, "weights": torch.zeros(3)})


def test_all_ranks_load_the_choice_of_rank_0(tmp_path: Path) -> None:
    """Rank 1 lists a later checkpoint, which a zombie has published meanwhile. Two directories represent the two
    times."""
    for name in ("before", "after"):
        save(tmp_path / name, 2, 100)
    save(tmp_path / "after", 2, 120)
    results = load(tmp_path, tmp_path / "before", tmp_path / "after")
    assert [output for _, output, _ in results] == ["(2, 100, 100)\n"] * 2, results


def test_no_rank_loads_a_checkpoint_if_there_is_none(tmp_path: Path) -> None:
    results = load(tmp_path, tmp_path / "a", tmp_path / "a")
    assert [output for _, output, _ in results] == ["None\n"] * 2, results


def test_a_rank_that_does_not_see_it_reports_the_remedy(tmp_path: Path) -> None:
    save(tmp_path / "a", 2, 100)
    _, (status, _, errors) = load(tmp_path, tmp_path / "a", tmp_path / "local")
    assert status in (1, -signal.SIGABRT), errors  # torch may abort at the exit of a process whose group is still open
    assert "which does not exist on node" in errors
    assert "on a filesystem that all nodes share" in errors


def test_rank_0_waits_until_the_agents_of_all_ranks_have_published(tmp_path: Path) -> None:
    save(tmp_path / "a", 8, 100)
    results = load(tmp_path, tmp_path / "a", tmp_path / "a", arguments=("with agents",))
    assert [output for _, output, _ in results] == ["(8, 120, 120)\n"] * 2, results
