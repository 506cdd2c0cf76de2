"""Which checkpoints in the memory of agents are complete."""

from hpcelastic.ipc.worker_channel import SnapshotList
from hpcelastic.training.memory_checkpoints import Failed, complete_checkpoints
from hpcelastic.training.retention import CheckpointName


def held(node: str, *parts: tuple[int, int, int], of: int = 3) -> SnapshotList:
    """Return the list of a node: round, step and part of each snapshot."""
    return SnapshotList(node, [str(CheckpointName(round, step, parts=of, part=part)) for round, step, part in parts])


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
    assert complete_checkpoints([SnapshotList("a", ["../x", "round-1"])]) == ([], [])
