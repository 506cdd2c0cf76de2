"""An agent keeps the snapshots of its workers in memory, answers requests about them, and publishes them at its end."""

import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import pytest

from hpcelastic.agent import snapshot_writer
from hpcelastic.agent.kept_snapshots import Kept
from hpcelastic.ipc.worker_channel import (
    DropSnapshot,
    FetchedSnapshot,
    FetchSnapshot,
    KeepOnly,
    ListSnapshots,
    Message,
    Snapshot,
    SnapshotKept,
    SnapshotList,
    WorkerChannel,
)
from hpcelastic.protocol.events import CheckpointFailed, CheckpointSaved
from hpcelastic.training.checkpoint_files import CheckpointFiles
from hpcelastic.training.fence import Fence
from hpcelastic.training.retention import CheckpointName, Retention
from hpcelastic.training.seals import SEAL_LENGTH, find_damage
from tests.agent.copying import shared_memory
from tests.agent.processes import TIMEOUT
from tests.agent.test_snapshot_writer import Node
from tests.training.workers import listing

SIZE = 5000
SEVEN, EIGHT = CheckpointName(2, 7), CheckpointName(2, 8)
PARTS = [CheckpointName(2, step, parts=2, part=part) for step in (7, 8) for part in (0, 1)]

M = TypeVar("M", bound=Message)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """An agent with a worker in round 2."""
    monkeypatch.setattr(snapshot_writer, "_RETRY_DELAYS", ())
    made = Node(tmp_path)
    yield made
    made.close()


def description(node: Node, name: CheckpointName, slot: int, publish: bool = False) -> Snapshot:
    retention = asdict(Retention(keep=2))
    return Snapshot(slot, 0, name.round, name.step, SIZE, str(node.directory), str(name), retention, publish=publish)


def take(node: Node, name: CheckpointName, slot: int = 0, *, room: int = SEAL_LENGTH) -> tuple[int, SnapshotKept]:
    """Hand over a snapshot. Return its memory, for the caller to close, and the answer."""
    fd = shared_memory(os.urandom(SIZE) + bytes(room))
    assert node.worker.send(description(node, name, slot), [fd])
    answer, _ = receive(node, node.worker, SnapshotKept)
    assert (answer.slot, answer.step) == (slot, name.step)
    return fd, answer


def keep(node: Node, name: CheckpointName, slot: int = 0) -> bytes:
    """Hand over a snapshot that the agent keeps. Return its content."""
    fd, answer = take(node, name, slot)
    assert answer.error == ""
    data = os.pread(fd, SIZE, 0)
    os.close(fd)
    return data


def keep_copy(node: Node, name: CheckpointName) -> None:
    """Let the agent have a copy of another node's snapshot."""
    fd = shared_memory(os.urandom(SIZE) + bytes(SEAL_LENGTH))
    copy = Kept(description(node, name, 0), name, fd)
    node.snapshots.kept.add(copy)
    assert node.snapshots.kept.seal(copy)


def receive(node: Node, channel: WorkerChannel, kind: type[M]) -> tuple[M, list[int]]:
    """Let the agent act until it has sent a message of a kind."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        node.turn()
        try:
            received = channel.receive(wait=False)
        except BlockingIOError:
            continue
        assert received is not None
        if isinstance(received[0], kind):
            return received[0], received[1]
    raise AssertionError(f"no {kind.__name__} has come")


def listed(node: Node, channel: WorkerChannel | None = None, directory: Path | None = None) -> list[str]:
    channel = node.worker if channel is None else channel
    assert channel.send(ListSnapshots(str(directory or node.directory), 5))
    answer, _ = receive(node, channel, SnapshotList)
    assert (answer.node, answer.request) == ("n1@a", 5)
    return list(answer.files)


def fetched(node: Node, file: str, channel: WorkerChannel | None = None) -> bytes | str:
    """Return the content of a snapshot, or the reason why the agent does not return it."""
    channel = node.worker if channel is None else channel
    assert channel.send(FetchSnapshot(str(node.directory), file, "n1@a", 6))
    answer, fds = receive(node, channel, FetchedSnapshot)
    assert (answer.file, answer.request, len(fds)) == (file, 6, not answer.error)
    if answer.error:
        return answer.error
    assert find_damage(Path(f"/proc/self/fd/{fds[0]}")) is None
    data = os.pread(fds[0], SIZE, 0)
    os.close(fds[0])
    return data


def publish_newest(node: Node, round: int = 2) -> list[str]:
    """Return the files after the end of the agent."""
    node.snapshots.publish_newest(round)
    node.finish()
    assert node.writer._thread is None or not node.writer._thread.join()  # type: ignore[func-returns-value]
    return listing(node.directory) if node.directory.exists() else []


# Messages


def test_snapshots_are_listed_and_fetched(node: Node) -> None:
    assert listed(node) == []
    data = [keep(node, SEVEN, 0), keep(node, EIGHT, 1)]
    assert listed(node) == [str(SEVEN), str(EIGHT)]
    assert [fetched(node, str(SEVEN)), fetched(node, str(EIGHT))] == data
    assert listed(node, directory=node.directory / "other") == []


@pytest.mark.parametrize(
    ("file", "error"),
    [(str(EIGHT), "it is not there any more"), ("../secret", "../secret is no name of a checkpoint")],
)
def test_a_fetch_of_what_is_not_there_has_an_answer(node: Node, file: str, error: str) -> None:
    keep(node, SEVEN)
    assert fetched(node, file) == error


def test_training_continues_from_one_checkpoint(node: Node) -> None:
    keep(node, SEVEN, 0)
    keep(node, EIGHT, 1)
    node.worker.send(KeepOnly(str(node.directory / "other"), ""))
    assert listed(node) == [str(SEVEN), str(EIGHT)]
    node.worker.send(KeepOnly(str(node.directory), str(SEVEN)))
    assert listed(node) == [str(SEVEN)]
    node.worker.send(KeepOnly(str(node.directory), ""))
    assert listed(node) == []


def test_memory_that_is_about_to_be_overwritten_is_dropped(node: Node) -> None:
    keep(node, SEVEN, 0)
    data = keep(node, EIGHT, 1)
    node.worker.send(DropSnapshot(0))
    assert listed(node) == [str(EIGHT)]
    assert fetched(node, str(EIGHT)) == data


def test_the_slots_of_another_worker_are_others(node: Node) -> None:
    keep(node, SEVEN, 0)
    other = WorkerChannel.connect(node.snapshots.name)
    other.send(DropSnapshot(0))
    assert listed(node, other) == [str(SEVEN)]
    other.close()


def test_a_process_whose_round_has_ended_gets_an_answer(node: Node) -> None:
    """It may take part in the next round."""
    fd, answer = take(node, CheckpointName(1, 900))
    assert answer.error == "round 1 has ended"
    assert listed(node) == []
    keep(node, SEVEN, 1)
    assert listed(node) == [str(SEVEN)]
    os.close(fd)


@pytest.mark.parametrize("room", [0, SEAL_LENGTH - 1, SEAL_LENGTH + 1])
def test_memory_of_another_size_is_not_kept(node: Node, room: int) -> None:
    fd, answer = take(node, SEVEN, room=room)
    assert answer.error == "its size is not fixed, or another one"
    assert listed(node) == []
    os.close(fd)


def test_memory_that_may_shrink_is_not_kept(node: Node) -> None:
    fd = os.memfd_create("test")
    os.truncate(fd, SIZE + SEAL_LENGTH)
    assert node.worker.send(description(node, SEVEN, 0), [fd])
    answer, _ = receive(node, node.worker, SnapshotKept)
    assert answer.error == "its size is not fixed, or another one"
    os.close(fd)


def test_a_worker_dies_while_it_overwrites_a_snapshot(node: Node) -> None:
    fd, _ = take(node, SEVEN, 0)
    data = keep(node, EIGHT, 1)
    node.worker.send(DropSnapshot(0))
    os.pwrite(fd, bytes(SIZE // 2), 0)
    os.close(fd)
    node.worker.close()
    while len(listed(node, later := WorkerChannel.connect(node.snapshots.name))) > 1:
        later.close()
    assert listed(node, later) == [str(EIGHT)]
    assert fetched(node, str(EIGHT), later) == data
    later.close()


# The end of the agent


def test_the_newest_snapshot_is_published(node: Node) -> None:
    keep(node, SEVEN, 0)
    data = keep(node, EIGHT, 1)
    assert publish_newest(node) == [str(EIGHT)]
    assert (node.directory / str(EIGHT)).read_bytes()[:SIZE] == data
    assert find_damage(node.directory / str(EIGHT)) is None


def test_the_generation_before_an_incomplete_one_is_published(node: Node) -> None:
    """Part 1 of the newest generation is on another node, or nowhere. The parts of the one before are here."""
    keep(node, PARTS[0], 0)
    keep_copy(node, PARTS[1])
    keep(node, PARTS[2], 1)
    assert publish_newest(node) == [str(name) for name in PARTS[:3]]
    assert [find_damage(node.directory / str(name)) for name in PARTS[:3]] == [None] * 3
    saved = [Path(event.path).name for event in node.events if isinstance(event, CheckpointSaved)]
    assert saved == [str(PARTS[2]), str(PARTS[0]), str(PARTS[1])], "the newest is first, and copies are last"


@pytest.mark.parametrize("there", [EIGHT, CheckpointName(2, 9), CheckpointName(2, 8, "loss=1.0")])
def test_what_is_on_disk_is_left_out(node: Node, there: CheckpointName) -> None:
    keep(node, SEVEN, 0)
    keep(node, EIGHT, 1)
    node.directory.mkdir()
    (node.directory / str(there)).write_bytes(b"")
    assert publish_newest(node) == [str(there)]
    assert (node.events, node.reports) == ([], [])


def test_snapshots_are_published_in_the_name_of_the_last_round(node: Node) -> None:
    """Round 3 has begun, and has claimed the directory. It has no snapshots of its own."""
    keep(node, SEVEN)
    claim(node, 3)
    assert publish_newest(node, 3) == [str(SEVEN)]


def test_a_newer_round_shuts_out_what_is_in_memory(node: Node) -> None:
    keep(node, SEVEN)
    claim(node, 4)
    assert publish_newest(node, 3) == []
    (event,) = node.events
    assert isinstance(event, CheckpointFailed) and "of round 3 is outdated" in event.error


def claim(node: Node, round: int) -> None:
    node.directory.mkdir()
    fence = Fence(snapshot_writer.run_nonce(node.paths), round)
    CheckpointFiles(node.directory, round, fence).claim()


def test_what_a_worker_has_overwritten_is_not_published(node: Node) -> None:
    """The agent ends before it has read that the worker overwrites the snapshot."""
    fd, _ = take(node, PARTS[0], 0)
    keep(node, PARTS[2], 1)
    node.worker.send(DropSnapshot(0))
    os.pwrite(fd, bytes(SIZE // 2), 0)
    os.close(fd)
    assert publish_newest(node) == [str(PARTS[2])]
    assert node.reports == ["the checkpoint of step 7 is not saved: its memory has changed since it was sealed"]
