"""Which checkpoints in the memory of agents are complete, and how they are loaded."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcelastic.errors import StoreError
from hpcelastic.ipc.worker_channel import SnapshotList
from hpcelastic.training import Checkpoints
from hpcelastic.training.memory_checkpoints import Failed, MemoryCheckpoints, complete_checkpoints
from hpcelastic.training.retention import CheckpointName
from hpcelastic.training.state_files import write_state
from tests.training.workers import become_nobody


def held(node: str, *parts: tuple[int, int, int], of: int = 3) -> SnapshotList:
    """Return the list of a node: round, step and part of each snapshot."""
    files = [str(CheckpointName(round, step, parts=of, part=part)) for round, step, part in parts]
    return SnapshotList(node, files, request=1)


def test_a_checkpoint_is_complete_once_all_parts_are_somewhere() -> None:
    lists = [held("a", (1, 8, 0), (1, 8, 1), (1, 9, 0)), None, held("b", (1, 8, 2), (1, 9, 2))]
    complete, incomplete = complete_checkpoints(lists)
    assert [(each.name.step, each.holders) for each in complete] == [(8, {0: ["a"], 1: ["a"], 2: ["b"]})]
    assert [name.step for name in incomplete] == [9]


def test_the_latest_round_is_the_newest() -> None:
    every = [(round, step, part) for round, step in ((1, 90), (2, 7)) for part in range(3)]
    complete, _ = complete_checkpoints([held("a", *every), held("b", *every), held("b", *every)])
    assert [(each.name[:2], each.holders[0]) for each in complete] == [((2, 7), ["a", "b"]), ((1, 90), ["a", "b"])]


def test_parts_of_another_number_of_ranks_are_another_checkpoint() -> None:
    complete, incomplete = complete_checkpoints([held("a", (1, 8, 0), of=2), held("b", (1, 8, 1), of=3)])
    assert complete == []
    assert sorted(name.parts for name in incomplete) == [2, 3]


def test_a_state_that_is_not_sharded_has_one_file() -> None:
    complete, incomplete = complete_checkpoints([held("a", (1, 8, 0), of=0)])
    assert [each.name.parts for each in complete] == [0]
    assert incomplete == []


def test_a_damaged_part_is_read_from_another_node() -> None:
    (found,), _ = complete_checkpoints([held("a", (1, 8, 0), of=1), held("b", (1, 8, 0), of=1)])
    left = found.without([Failed(0, "a", "damaged")])
    assert left is not None and left.holders == {0: ["b"]}
    assert left.without([Failed(0, "b", "damaged")]) is None


def test_names_that_are_none_are_ignored() -> None:
    assert complete_checkpoints([SnapshotList("a", ["../x", "round-1"], request=1)]) == ([], [])


class Agent:
    """Keeps one state in memory, in place of the channel to an agent."""

    def __init__(self, state: dict[str, Any], path: Path) -> None:
        with path.open("wb+") as file:
            write_state(state, file)
        self.content = bytearray(path.read_bytes())
        self.dropped = False

    def kept(self, directory: Path) -> SnapshotList:
        return held("n1@a", (1, 8, 0), of=0)

    def fetch(self, directory: Path, name: CheckpointName, node: str) -> int:
        fd = os.memfd_create("snapshot")
        os.write(fd, self.content)
        return fd

    def keep_only(self, directory: Path, name: CheckpointName | None) -> None:
        self.dropped = name is None

    def await_agent(self) -> None: ...


def state(value: float) -> dict[str, Any]:
    return {"step": 8, "parts": [{"weight": torch.full((2, 3), value), "steps": torch.tensor(8)}]}


def load(agent: Agent, like: dict[str, Any] | None) -> Any:
    memory = MemoryCheckpoints(agent, Path("/c"))  # type: ignore[arg-type]
    return memory.load(None, "cpu", like)


def test_tensors_of_like_receive_the_values(tmp_path: Path) -> None:
    agent, like = Agent(state(1), tmp_path / "c"), state(0)
    name, loaded = load(agent, like)
    assert name == CheckpointName(1, 8)
    assert loaded["parts"][0]["weight"] is like["parts"][0]["weight"]
    assert torch.equal(like["parts"][0]["weight"], torch.ones(2, 3)) and loaded["step"] == 8


def test_damaged_memory_is_found_before_anything_is_overwritten(tmp_path: Path) -> None:
    agent, like = Agent(state(1), tmp_path / "c"), state(0)
    agent.content[-100] ^= 1
    assert load(agent, like) is None and load(agent, None) is None
    assert torch.equal(like["parts"][0]["weight"], torch.zeros(2, 3))


def test_a_state_that_is_lost_may_have_been_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank has overwritten its state before this one found the damage. All ranks begin anew."""
    become_nobody(monkeypatch)
    agent, checkpoints = Agent(state(1), tmp_path / "c"), Checkpoints(tmp_path / "checkpoints")
    agent.content[-100] ^= 1
    monkeypatch.setattr(Checkpoints, "_channel", lambda self: agent)
    assert checkpoints.load() is None
    agent.dropped = False
    with pytest.raises(StoreError, match=r"the newest state is lost: part 0 in the memory of n1: its checksum .* anew"):
        checkpoints.load(like=state(0))
    assert agent.dropped, "the next start finds nothing"
