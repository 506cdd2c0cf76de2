"""A process hands over snapshots to its agent. The test acts as the agent."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hpcelastic.ipc.worker_channel import (
    AwaitSnapshots,
    ChannelListener,
    DropSnapshot,
    FetchedSnapshot,
    FetchSnapshot,
    Message,
    NoSnapshots,
    Snapshot,
    SnapshotDone,
    SnapshotKept,
    SnapshotList,
    WorkerChannel,
)
from hpcelastic.training import Checkpoints, snapshot_channel
from hpcelastic.training.archive import archive_of
from hpcelastic.training.retention import CheckpointName, Retention
from hpcelastic.training.snapshot_channel import SnapshotChannel
from tests.agent.processes import eventually
from tests.training.workers import become_nobody


class Pair:
    """A process and its agent."""

    def __init__(self) -> None:
        listener = ChannelListener()
        self.here = SnapshotChannel(WorkerChannel.connect(listener.name))
        accepted = listener.accept()
        assert accepted is not None
        self.agent = accepted[1]
        listener.close()

    def save(self, step: int, *, publish: bool = False) -> int:
        """Hand over a snapshot, with a copy. Return the number of its slot."""
        archive = archive_of({"step": step})
        slot = self.here.prepare(archive)
        assert not isinstance(slot, str), slot
        name, retention = CheckpointName(1, step), Retention()
        assert self.here.save(archive, slot, Path("/c"), name, retention, publish=publish, copy=True) is None
        return slot.number

    def received(self) -> list[Message]:
        """Return what the agent has received."""
        found = []
        while True:
            try:
                received = self.agent.receive(wait=False)
            except BlockingIOError:
                return found
            assert received is not None
            found.append(received[0])


def memory(content: bytes) -> int:
    fd = os.memfd_create("snapshot")
    os.write(fd, content)
    return fd


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    become_nobody(monkeypatch)
    monkeypatch.setattr(snapshot_channel, "_AGENT_TIMEOUT", 0.01)
    made = Pair()
    yield made
    made.agent.close()


def test_a_snapshot_is_kept_once_the_agent_says_so(pair: Pair) -> None:
    slot = pair.save(7)
    assert pair.here.is_copying() and not pair.here.is_kept()
    pair.agent.send(SnapshotKept(slot, 6))
    assert pair.here.is_copying(), "the answer is about an older snapshot"
    pair.agent.send(SnapshotKept(slot, 7))
    assert pair.here.is_kept(10) and not pair.here.is_copying()


def test_a_refused_snapshot_is_not_kept_and_another_may_follow(pair: Pair) -> None:
    """The process was in a round that has ended, and is in the next round now."""
    pair.agent.send(SnapshotKept(pair.save(7), 7, "round 1 has ended"))
    assert not pair.here.is_kept(10) and not pair.here.is_copying()
    pair.agent.send(SnapshotKept(pair.save(8), 8))
    assert pair.here.is_kept(10)


def test_memory_is_not_overwritten_before_its_copy_is_sent(pair: Pair) -> None:
    """The snapshot is published already."""
    pair.agent.send(SnapshotDone(pair.save(7, publish=True), ""))
    assert pair.here.wait(10)
    assert [pair.save(8), pair.save(9)] == [1, 2]
    assert pair.here.prepare(archive_of({"step": 10})) == "the agent has not answered for 0.01 s"
    assert not any(isinstance(message, DropSnapshot) for message in pair.received())
    pair.agent.send(SnapshotKept(0, 7))
    assert pair.save(10) == 0


def test_the_agent_knows_before_memory_is_overwritten(pair: Pair) -> None:
    for step in (7, 8, 9):
        pair.agent.send(SnapshotKept(pair.save(step), step))
        assert pair.here.is_kept(10)
    assert [type(message) for message in pair.received()] == [Snapshot, Snapshot, DropSnapshot, Snapshot]


def test_without_the_agent_nothing_is_kept(pair: Pair) -> None:
    pair.save(7)
    pair.agent.close()
    assert not pair.here.is_kept(10) and not pair.here.is_copying()
    assert pair.here.prepare(archive_of({"step": 8})) == "the agent does not answer"


def test_an_answer_that_comes_too_late_is_not_taken_for_another(pair: Pair) -> None:
    """The process has not waited for it."""
    assert pair.here.kept(Path("/c")) is None
    name, before = CheckpointName(1, 7), len(os.listdir("/proc/self/fd"))
    pair.agent.send(SnapshotList("n1@a", [str(name)], 1))
    pair.agent.send(FetchedSnapshot(str(name), "", 2), [0])
    pair.agent.send(FetchedSnapshot(str(name), "", 2), [0])
    os.close(pair.here.fetch(Path("/c"), name, "n1@a"))
    pair.here.is_kept()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_the_number_of_a_step_may_be_of_numpy(pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, round=1)
    monkeypatch.setattr(checkpoints, "_channel", lambda: pair.here)
    assert checkpoints.snapshot(np.int64(7), {})
    checkpoints.save(np.int64(8), {}, wait=False)
    assert [message.step for message in pair.received() if isinstance(message, Snapshot)] == [7, 8]


@pytest.mark.usefixtures("high_descriptors")
def test_a_process_may_have_many_descriptors() -> None:
    """select() takes none above 1023."""
    here, agent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    assert here.fileno() > 1023
    with here, agent:
        WorkerChannel(agent).send(SnapshotList("n1@a", [], 1))
        assert SnapshotChannel(WorkerChannel(here)).kept(Path("/c")) == SnapshotList("n1@a", [], 1)


class Interrupted(BaseException):
    """The round has ended."""


@pytest.mark.parametrize("arrives_before", [True, False])
def test_the_answer_to_a_fetch_that_was_interrupted_is_dropped(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, arrives_before: bool
) -> None:
    """The next round fetches another part. The answer to the first request arrives before that, or meanwhile."""

    def interrupted(*_: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patches, pytest.raises(Interrupted):
        patches.setattr(pair.here, "_receive_until", interrupted)
        pair.here.fetch(Path("/c"), CheckpointName(1, 7, parts=2, part=0), "n1@a")
    before = len(os.listdir("/proc/self/fd"))
    first, second = memory(b"part 0"), memory(b"part 1")
    pair.agent.send(FetchedSnapshot("part 0", "", 1), [first])
    if arrives_before:
        pair.here.is_kept()
    pair.agent.send(FetchedSnapshot("part 1", "", 2), [second])
    fetched = pair.here.fetch(Path("/c"), CheckpointName(1, 7, parts=2, part=1), "n1@a")
    assert os.pread(fetched, 10, 0) == b"part 1"
    for fd in (first, second, fetched):
        os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_waits_for_the_publication_although_an_older_answer_comes(pair: Pair) -> None:
    assert pair.here.kept(Path("/c")) is None
    pair.agent.send(SnapshotList("n1@a", [], 1))
    waits = threading.Thread(target=pair.here.await_agent)
    waits.start()
    assert eventually(lambda: AwaitSnapshots(2) in pair.received())
    waits.join(0.1)
    assert waits.is_alive()
    pair.agent.send(NoSnapshots(2))
    waits.join()


def test_a_fetch_that_fails_has_a_reason(pair: Pair) -> None:
    pair.agent.send(FetchedSnapshot("", "it is not there any more", 1))
    with pytest.raises(OSError, match="it is not there any more"):
        pair.here.fetch(Path("/c"), CheckpointName(1, 7), "n2@b")
    assert pair.received() == [FetchSnapshot("/c", str(CheckpointName(1, 7)), "n2@b", 1)]
