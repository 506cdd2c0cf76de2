"""A worker is killed at any line of the code that takes a snapshot: the ones before it stay whole."""

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from hpcelastic.ipc.worker_channel import WorkerChannel
from hpcelastic.training.archive import archive_of
from hpcelastic.training.retention import CheckpointName, Retention
from hpcelastic.training.snapshot_channel import SnapshotChannel
from hpcelastic.training.state_files import read_state
from tests.agent.test_snapshot_writer import Node
from tests.training.workers import become_nobody

pytestmark = pytest.mark.slow

TRACED = ("snapshot_channel.py", "slots.py", "worker_channel.py", "descriptors.py")
"""The files whose lines count, beside the function that copies the state to memory."""

Trace = Callable[[FrameType, str, object], Any]


def state(step: int) -> dict[str, Any]:
    return {"step": step, "weights": [torch.full((3000,), float(step)), torch.full((70,), step)]}


def take(channel: SnapshotChannel, directory: Path, step: int) -> None:
    archive = archive_of(state(step))
    slot = channel.prepare(archive)
    assert not isinstance(slot, str), slot
    name = CheckpointName(2, step)
    assert channel.save(archive, slot, directory, name, Retention(), publish=False, copy=False) is None
    assert channel.is_kept(60)


def worker(node: Node, first: int, line: int) -> None:
    """Take three snapshots. Then take one that overwrites the memory of the first, and die at a line of that."""
    lines = count(1)

    def trace(frame: FrameType, event: str, _: object) -> Trace | None:
        if Path(frame.f_code.co_filename).name not in TRACED and frame.f_code.co_name != "copy_to":
            return None
        if event == "line" and next(lines) == line:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    channel = SnapshotChannel(WorkerChannel.connect(node.snapshots.name))
    for step in range(first, first + 3):
        take(channel, node.directory, step)
    sys.settrace(trace)
    take(channel, node.directory, first + 3)
    sys.settrace(None)


def ends_by_itself(node: Node, first: int, line: int) -> bool:
    """Start a worker, and act as its agent until it has ended. Return whether it was not killed."""
    pid = os.fork()
    if pid == 0:
        try:
            worker(node, first, line)
            os._exit(0)
        finally:
            os._exit(1)
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        node.turn()
    node.turn()  # the end of the channel
    exit_code = os.waitstatus_to_exitcode(ended[1])
    assert exit_code in (0, -signal.SIGKILL)
    return exit_code == 0


def check_snapshots(node: Node, last: int) -> None:
    """Check that the snapshot before the last one is there, and that all that are there are whole."""
    names = node.snapshots.kept.names(str(node.directory))
    assert CheckpointName(2, last - 1) in names
    for name in names:
        kept = node.snapshots.kept.open(str(node.directory), name)
        assert kept is not None
        with kept:
            assert kept.is_whole()
            found, expected = read_state(Path(f"/proc/self/fd/{kept.fd}"), "cpu"), state(name.step)
            assert found["step"] == name.step
            assert all(torch.equal(a, b) for a, b in zip(found["weights"], expected["weights"], strict=True))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    become_nobody(monkeypatch)
    made = Node(tmp_path)
    yield made
    made.close()


def test_no_point_of_a_snapshot_loses_the_one_before(node: Node) -> None:
    for line in count(1):
        over = ends_by_itself(node, 10 * line, line)
        check_snapshots(node, 10 * line + 3)
        if over:
            break
    assert line > 50, "the lines of the snapshot were not traced"
    node.snapshots.publish_newest(2)
    node.finish()
    newest = max(node.directory.glob("*.pt"))
    assert read_state(newest, "cpu")["step"] == 10 * line + 3
