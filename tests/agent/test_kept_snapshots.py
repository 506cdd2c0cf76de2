"""The snapshots that an agent keeps in memory: which of them stay, and whether they are whole."""

import mmap
import os
from collections.abc import Iterator

import pytest

from hpcelastic.agent.kept_snapshots import Kept, KeptSnapshots
from hpcelastic.ipc.worker_channel import Snapshot
from hpcelastic.training.retention import CheckpointName
from hpcelastic.training.seals import SEAL_LENGTH
from tests.agent.copying import shared_memory

SIZE = 5_000_000


def snapshot(round: int, step: int, part: int = 0, parts: int = 2, *, slot: int | None = None) -> Kept:
    """Return a snapshot whose content is random; a copy of another node's without ``slot``."""
    name = CheckpointName(round, step, "", parts, part)
    fd = shared_memory(os.urandom(SIZE) + bytes(SEAL_LENGTH))
    return Kept(Snapshot(slot or 0, 0, round, step, SIZE, "/checkpoints", str(name), {}), name, fd, slot)


@pytest.fixture
def kept() -> Iterator[KeptSnapshots]:
    made = KeptSnapshots()
    yield made
    made.close()


def names(kept: KeptSnapshots) -> list[tuple[int, ...]]:
    return [(name.round, name.step, name.part) for name in kept.names("/checkpoints")]


def add(kept: KeptSnapshots, *each: Kept) -> None:
    for one in each:
        kept.add(one)
        kept.seal(one)


def test_the_last_two_generations_stay(kept: KeptSnapshots) -> None:
    add(kept, *(snapshot(1, step, part) for step in (7, 8, 9) for part in (0, 1)))
    assert names(kept) == [(1, 8, 0), (1, 8, 1), (1, 9, 0), (1, 9, 1)]


def test_an_old_copy_that_arrives_late_is_not_kept(kept: KeptSnapshots) -> None:
    """A node of an older round has sent it."""
    add(kept, snapshot(2, 4), snapshot(2, 5))
    late = snapshot(1, 900)
    assert not kept.add(late, sealed=True)
    assert names(kept) == [(2, 4, 0), (2, 5, 0)]


def test_the_memory_of_a_worker_has_one_snapshot(kept: KeptSnapshots) -> None:
    add(kept, snapshot(1, 7, slot=0), snapshot(1, 8, slot=0))
    assert names(kept) == [(1, 8, 0)]


def test_memory_that_is_overwritten_is_not_kept(kept: KeptSnapshots) -> None:
    add(kept, snapshot(1, 7, slot=0), snapshot(1, 8, slot=1))
    kept.drop(0)
    assert names(kept) == [(1, 8, 0)]


def test_a_snapshot_is_not_found_before_it_is_sealed(kept: KeptSnapshots) -> None:
    made = snapshot(1, 7)
    kept.add(made)
    assert names(kept) == []
    assert kept.open("/checkpoints", made.name) is None
    assert kept.seal(made)
    assert names(kept) == [(1, 7, 0)]


def test_a_snapshot_that_is_dropped_while_it_is_sealed_is_not_kept(kept: KeptSnapshots) -> None:
    made = snapshot(1, 7, slot=0)
    kept.add(made)
    kept.drop(0)
    assert not kept.seal(made)
    assert names(kept) == []


@pytest.mark.parametrize("position", [0, SIZE // 2, SIZE - 1, SIZE])
def test_a_damaged_byte_is_found(kept: KeptSnapshots, position: int) -> None:
    made = snapshot(1, 7)
    add(kept, made)
    opened = kept.open("/checkpoints", made.name)
    assert opened is not None
    with opened:
        assert opened.is_whole()
        with mmap.mmap(opened.fd, opened.size) as memory:
            memory[position] ^= 1
        assert not opened.is_whole()


def test_training_continues_from_one_checkpoint(kept: KeptSnapshots) -> None:
    add(kept, snapshot(1, 7), snapshot(1, 7, 1), snapshot(1, 8))
    kept.keep_only("/other", None)
    kept.keep_only("/checkpoints", CheckpointName(1, 7, parts=2))
    assert names(kept) == [(1, 7, 0), (1, 7, 1)]
    kept.keep_only("/checkpoints", None)
    assert names(kept) == []


def test_the_newest_come_first_and_copies_last_in_a_generation(kept: KeptSnapshots) -> None:
    add(kept, snapshot(1, 7, slot=0), snapshot(1, 7, 1), snapshot(1, 8, 1), snapshot(1, 8, slot=1))
    newest = kept.newest()
    assert [(each.name.step, each.name.part) for each in newest] == [(8, 0), (8, 1), (7, 0), (7, 1)]
    for each in newest:
        each.close()


def test_no_descriptor_is_left(kept: KeptSnapshots) -> None:
    before = os.listdir("/proc/self/fd")
    made = KeptSnapshots()
    add(made, *(snapshot(1, step, slot=step % 3) for step in range(9)))
    with made.open("/checkpoints", CheckpointName(1, 8, parts=2)) or snapshot(1, 1):
        made.close()
    assert set(os.listdir("/proc/self/fd")) <= set(before)
