"""The agent publishes the states that its workers have copied to memory."""

import errno
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from hpcelastic.agent import free_space, snapshot_writer
from hpcelastic.agent.event_loop import EventLoop
from hpcelastic.agent.free_space import SpaceForecast
from hpcelastic.agent.inbox import Inbox
from hpcelastic.agent.snapshot_writer import SnapshotWriter
from hpcelastic.agent.snapshots import Snapshots
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.worker_channel import (
    AwaitSnapshots,
    Message,
    NoSnapshots,
    Park,
    Snapshot,
    SnapshotDone,
    WorkerChannel,
)
from hpcelastic.protocol.events import CheckpointFailed, CheckpointSaved, Event
from hpcelastic.storage.paths import RunPaths
from hpcelastic.training import seals
from hpcelastic.training.checkpoint_files import CheckpointFiles
from hpcelastic.training.fence import Fence
from hpcelastic.training.retention import CheckpointName, Retention
from hpcelastic.training.seals import SEAL_LENGTH, seal_text
from tests.training.workers import drafts, listing, make_run


class Node:
    """An agent with one worker in round 2, and this process as that worker."""

    def __init__(self, tmp_path: Path) -> None:
        self.paths = RunPaths(make_run(tmp_path / "run", round=2))
        self.directory = tmp_path / "checkpoints"
        self.page = ControlPage.make(1)
        self.page.grant(0, 2)
        self.events: list[Event] = []
        self.reports: list[str] = []
        self._loop, self._wakeup = EventLoop(), Inbox[None]()
        self.snapshots = Snapshots(
            self.paths, "n1@a", self.page, None, self._loop, self.events.append, self.reports.append
        )
        self.writer = self.snapshots.writer
        self.worker = WorkerChannel.connect(self.snapshots.name)
        self.finished = False

    def turn(self) -> None:
        self._loop.turn(0.05, first=self._wakeup)

    def send(
        self,
        step: int,
        data: bytes = b"state",
        slot: int = 0,
        size: int | None = None,
        round: int = 2,
        metric: str = "",
        part: int = 0,
        parts: int = 0,
    ) -> None:
        fd = os.memfd_create("test")
        os.write(fd, data + bytes(SEAL_LENGTH))
        length = len(data) if size is None else size
        retention = asdict(Retention(keep=2, keep_every=10, best="loss"))
        name = CheckpointName(round, step, metric, parts, part)
        message = Snapshot(slot, 0, round, step, length, str(self.directory), str(name), retention)
        assert self.worker.send(message, [fd])
        os.close(fd)

    def begin(self, step: int) -> None:
        """Send a snapshot, and wait until the writer, which is blocked, has begun it."""
        self.send(step)
        while self.writer._current is None:
            self.turn()

    def answers(self, count: int) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        for _ in range(400):
            self.turn()
            try:
                received = self.worker.receive(wait=False)
            except BlockingIOError:
                continue
            assert received is not None
            if isinstance(received[0], SnapshotDone):
                found.append((received[0].slot, received[0].error))
            if len(found) == count:
                break
        return found

    def finish(self, *, interrupted: bool = False) -> None:
        self.finished = True
        self.snapshots.finish(lambda: interrupted)

    def close(self) -> None:
        if not self.finished:
            self.finish(interrupted=True)
        self.worker.close()
        self.page.close()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(snapshot_writer, "_RETRY_DELAYS", (0.02, 0.02))
    made = Node(tmp_path)
    yield made
    made.close()


@pytest.fixture
def blocked(node: Node, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Block the writer in its first publication, until the function is called."""
    import threading

    go, publish = threading.Event(), CheckpointFiles.publish

    def waits(*args: object, **kwargs: object) -> Path:
        assert go.wait(20)
        return publish(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(CheckpointFiles, "publish", waits)
    return go.set


def test_a_snapshot_becomes_a_sealed_checkpoint(node: Node) -> None:
    node.send(7, data := os.urandom(9_000_000))
    assert node.answers(1) == [(0, "")]
    path = node.directory / "round-0002.step-00000007.pt"
    assert path.read_bytes() == data + seal_text(zlib.crc32(data))
    assert seals.find_damage(path) is None
    (event,) = node.events
    assert isinstance(event, CheckpointSaved)
    assert (event.round, event.step, event.path, event.bytes) == (2, 7, str(path), len(data))
    assert node.page.progress() == 7


def test_the_oldest_checkpoints_are_removed(node: Node) -> None:
    for step in (1, 2, 3):
        node.send(step)
        node.answers(1)
    assert listing(node.directory) == ["round-0002.step-00000002.pt", "round-0002.step-00000003.pt"]


def test_the_best_checkpoint_and_those_of_every_tenth_step_stay(node: Node) -> None:
    for step, metric in ((10, "loss=2.0"), (11, "loss=0.5"), (12, "loss=0.7"), (13, ""), (14, "loss=0.6")):
        node.send(step, metric=metric)
        assert node.answers(1) == [(0, "")]
    assert listing(node.directory) == [
        "round-0002.step-00000010.loss=2.0.pt",
        "round-0002.step-00000011.loss=0.5.pt",
        "round-0002.step-00000013.pt",
        "round-0002.step-00000014.loss=0.6.pt",
    ]


def test_only_the_newest_snapshot_follows_the_one_that_is_being_written(
    node: Node, blocked: Callable[[], None]
) -> None:
    node.begin(10)
    node.send(11, slot=1)
    node.send(12, slot=2)
    assert node.answers(1) == [(1, "replaced by step 12")]
    blocked()
    assert node.answers(2) == [(0, ""), (2, "")]
    assert listing(node.directory) == ["round-0002.step-00000010.pt", "round-0002.step-00000012.pt"]


def test_each_part_of_a_sharded_state_is_published(node: Node, blocked: Callable[[], None]) -> None:
    node.begin(10)
    for part in range(2):
        node.send(11, slot=part + 1, part=part, parts=2)
    blocked()
    assert node.answers(3) == [(0, ""), (1, ""), (2, "")]
    node.send(12, part=0, parts=2)
    assert node.answers(1) == [(0, "")]
    names = ["10.pt", "11.part-00000-of-00002.pt", "11.part-00001-of-00002.pt", "12.part-00000-of-00002.pt"]
    assert listing(node.directory) == [f"round-0002.step-000000{name}" for name in names]


def test_a_sharded_checkpoint_is_complete_before_it_replaces_another(node: Node) -> None:
    for step in (11, 12, 13):
        for part in range(2):
            node.send(step, part=part, parts=2)
            assert node.answers(1) == [(0, "")]
            complete = [11, 12, 13][: step - 11 + part]
            kept = {
                f"round-0002.step-{step:08}.part-{part:05}-of-00002.pt" for step in complete[-2:] for part in (0, 1)
            }
            assert kept <= set(listing(node.directory))
    assert set(listing(node.directory)) == kept


def test_the_state_of_a_worker_that_has_died_is_published(node: Node, blocked: Callable[[], None]) -> None:
    node.begin(7)
    node.worker.close()
    node.turn()
    blocked()
    node.finish()
    assert listing(node.directory) == ["round-0002.step-00000007.pt"]


def test_a_save_that_fails_is_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory cannot be created at first."""
    node.directory.write_text("a file in its place")
    waits = SnapshotWriter._waits

    def repair(writer: SnapshotWriter, directory: str, seconds: float) -> bool:
        node.directory.unlink(missing_ok=True)
        return waits(writer, directory, seconds)

    monkeypatch.setattr(SnapshotWriter, "_waits", repair)
    node.send(7)
    assert node.answers(1) == [(0, "")]
    assert node.reports[1] == "the checkpoint of step 7 is saved, at attempt 2"


def test_a_save_that_always_fails_is_reported_and_ends_nothing(node: Node) -> None:
    node.directory.write_text("a file in its place")
    node.send(7)
    ((_, error),) = node.answers(1)
    assert "a file is in the way" in error
    assert [event.error for event in node.events if isinstance(event, CheckpointFailed)] == [error]
    assert len(node.reports) == 2  # the first attempt and the last one
    node.directory.unlink()
    node.send(8)
    assert node.answers(1) == [(0, "")]


def test_an_unexpected_error_does_not_end_later_saves(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [ImportError("the environment was removed")]

    def after_save(forecast: object, directory: str) -> None:
        if errors:
            raise errors.pop()

    monkeypatch.setattr(free_space.FreeSpace, "after_save", after_save)
    node.send(7)
    assert node.answers(1) == [(0, "ImportError: the environment was removed")]
    node.send(8)
    assert node.answers(1) == [(0, "")]
    assert node.reports == ["step 7: its checkpoint may be missing: ImportError: the environment was removed"]


@pytest.mark.parametrize(
    ("code", "message"),
    [(errno.ENOSPC, "the filesystem is full: free some space"), (errno.EDQUOT, "the disk quota is used up")],
)
def test_a_lack_of_space_is_told_and_tried_again(
    node: Node, code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(writer: SnapshotWriter, job: object, draft: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(SnapshotWriter, "_write", refuse)
    node.send(7)
    ((_, error),) = node.answers(1)
    assert message in error
    assert [report.partition(":")[0] for report in node.reports] == [
        "the checkpoint of step 7 is not saved",
        "the checkpoint of step 7 is given up",
    ]
    assert (listing(node.directory), drafts(node.directory)) == ([], [])


def test_the_free_space_is_watched(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reports come in order, because one thread saves and reports."""
    monkeypatch.setattr(free_space, "free_bytes", lambda directory: 2**30)
    monkeypatch.setattr(SpaceForecast, "seconds_left", lambda forecast: len(forecast.observations) * 3 * 3600.0)
    node.send(7, b"short", size=2**31)
    ((_, error),) = node.answers(1)
    assert "only 13 of" in error  # it was tried
    node.send(8)
    assert node.answers(1) == [(0, "")]
    node.finish()
    assert node.writer._thread is not None
    node.writer._thread.join()
    first, *_, last = node.reports
    assert first.endswith("step 7 has 2.0 GiB, and only 1.0 GiB are free; it is tried nevertheless")
    assert last == f"{node.directory}: 1.0 GiB are free, full in about 3 h at the present rate"


def test_a_newer_snapshot_ends_the_attempts(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_writer, "_RETRY_DELAYS", (60.0,))
    node.directory.write_text("a file in its place")
    node.send(7)
    while not node.reports:
        node.turn()
    node.directory.unlink()
    node.send(8, slot=1)
    (first, error), second = node.answers(2)
    assert (first, "a file is in the way" in error, second) == (0, True, (1, ""))


def test_a_newer_round_shuts_out_a_snapshot(node: Node, blocked: Callable[[], None]) -> None:
    node.begin(7)
    node.directory.mkdir()
    nonce = snapshot_writer.run_nonce(node.paths)
    CheckpointFiles(node.directory, 3, Fence(nonce, 3)).claim()
    blocked()
    ((_, error),) = node.answers(1)
    assert "of round 2 is outdated" in error
    assert (listing(node.directory), drafts(node.directory)) == ([], [])
    assert len(node.reports) == 1  # there was one attempt


def test_a_process_whose_round_has_ended_is_refused(node: Node) -> None:
    node.send(7, round=1)
    node.page.revoke(0)
    node.send(8, slot=1)
    assert node.answers(2) == [(0, "round 1 has ended"), (1, "round 2 has ended")]
    assert not node.directory.exists()


def test_memory_that_is_too_small_is_an_error(node: Node) -> None:
    node.send(7, b"short", size=100)
    ((_, error),) = node.answers(1)
    assert "only 13 of 100 bytes" in error
    assert listing(node.directory) == []


def test_a_worker_waits_until_no_snapshot_is_left(node: Node, blocked: Callable[[], None]) -> None:
    node.begin(7)
    later = WorkerChannel.connect(node.snapshots.name)
    later.send(AwaitSnapshots(1))
    for _ in range(5):
        node.turn()
    with pytest.raises(BlockingIOError):
        later.receive(wait=False)
    blocked()
    received = later.receive(wait=True)
    assert received is not None and received[0] == NoSnapshots(1)
    assert listing(node.directory) == ["round-0002.step-00000007.pt"]
    later.send(AwaitSnapshots(2))
    node.turn()
    assert later.receive(wait=True) == (NoSnapshots(2), [])
    later.close()


def test_other_messages_are_ignored(node: Node) -> None:
    other: Message = Park(1)
    assert node.worker.send(other, [0])
    node.send(7)
    assert node.answers(1) == [(0, "")]


def test_the_end_waits_for_the_last_snapshot(node: Node) -> None:
    node.send(7)
    while node.writer._thread is None:
        node.turn()
    node.finish()
    assert listing(node.directory) == ["round-0002.step-00000007.pt"]


@pytest.mark.parametrize("interrupted", [True, False])
def test_the_end_does_not_wait_for_a_filesystem_that_hangs(
    node: Node, blocked: Callable[[], None], interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_writer, "_STALL_TIMEOUT", 60.0 if interrupted else 0.3)
    node.begin(7)
    node.finish(interrupted=interrupted)
    assert node.reports == ["step 7: 0 of 0 MiB of its checkpoint are written; the rest is given up"]
    blocked()
