"""Queries to SLURM about a run."""

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.agent.batch_system import PendingCapacity
from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import SlurmError
from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import Cause, Member, NodeState, Participant, Phase, State
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.queue import QueuedJob
from hpcelastic.slurm.queue_watcher import QueueWatcher, WatchedRun
from hpcelastic.storage import files
from hpcelastic.storage.leases import OwnLease
from hpcelastic.storage.paths import RunPaths
from tests.agent.processes import TIMEOUT

FIRST = Member("n1@0-aa", NodeState.READY, 0, 1, "10.0.0.1", 1, job="7.0")


def test_an_agent_that_was_started_again_is_not_counted_as_two_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = RunPaths(tmp_path)
    files.make_directory(paths.leases)
    for node in ("n1@0-aa", "n1@0-bb", "n2@0-cc"):
        OwnLease(paths.leases, node).renew(replace(FIRST, node=node))
    monkeypatch.setattr(scheduler, "queue", lambda: [QueuedJob("7", "7", "", "RUNNING", 4, 0, "None")])
    queue_watcher = QueueWatcher(
        WatchedRun(paths, FileBackend(paths), "n1@0-bb", 300.0, False, 0.0, lambda count: ""), print
    )
    assert queue_watcher.pending_capacity() == PendingCapacity(expected=2, pending=0)


@contextmanager
def watching(
    root: Path,
    submit: Callable[[int], str],
    *,
    poll: float = 300.0,
    refill: float = 0.001,
    report: Callable[[str], object] = print,
) -> Iterator[QueueWatcher]:
    """A queue watcher of a run of two to eight nodes, which replaces a lost node after ``refill`` s by ``submit``."""
    paths = RunPaths(root)
    watched = WatchedRun(paths, FileBackend(paths), "n1@0-aa", poll, False, refill, submit)
    watcher = QueueWatcher(watched, report)
    watcher.start(lambda pending_capacity: None)
    try:
        yield watcher
    finally:
        watcher.stop()


def running(round: int, nodes: int, **spent: int) -> State:
    participants = tuple(Participant(f"n{node}@0-aa", 1, "10.0.0.1", 1) for node in range(nodes))
    return State("r", Settings(NodeRange(2, 8)), Phase.RUNNING, round, participants=participants, spent=spent)


def leave(root: Path, *nodes: int) -> None:
    """Let the agents of some nodes leave the run."""
    files.make_directory(RunPaths(root).leases)
    for node in (f"n{number}@0-aa" for number in nodes):
        OwnLease(RunPaths(root).leases, node).renew(replace(FIRST, node=node, node_state=NodeState.LEFT))


@pytest.mark.parametrize(
    ("spent", "left", "submitted"),
    [
        ({Cause.NODE.value: 1}, [], 4),
        ({Cause.NODE.value: 2}, [], 4),
        ({Cause.NODE.value: 1, Cause.LEAVE.value: 1}, [7], 3),
        ({Cause.NODE.value: 1, Cause.LEAVE.value: 1}, [4, 5, 6], 1),
    ],
    ids=["at once", "one after the other", "and one has left", "and three have left"],
)
def test_each_lost_node_is_replaced(spent: dict[str, int], left: list[int], submitted: int, tmp_path: Path) -> None:
    counts: queue.Queue[int] = queue.Queue()
    leave(tmp_path, *left)
    with watching(tmp_path, lambda count: counts.put(count) or "submitted") as watcher:
        watcher.observe(running(1, 8), first=True)
        watcher.observe(running(2, 4, **spent), first=True)
        assert counts.get(timeout=TIMEOUT) == submitted


def test_nodes_that_leave_before_the_replacement_of_a_lost_one_are_not_replaced(tmp_path: Path) -> None:
    counts: queue.Queue[int] = queue.Queue()
    leave(tmp_path, 4, 5, 6)
    with watching(tmp_path, lambda count: counts.put(count) or "submitted", refill=TIMEOUT) as watcher:
        watcher.observe(running(1, 8), first=True)
        watcher.observe(running(2, 7, node=1), first=True)
        watcher.observe(running(3, 4, node=1, leave=1), first=True)
        watcher._refill(running(3, 4, node=1, leave=1))
        assert counts.get_nowait() == 1
        watcher._refill(running(3, 4, node=1, leave=1))
        assert counts.empty()


def test_a_node_that_has_left_is_not_replaced(tmp_path: Path) -> None:
    counts: queue.Queue[int] = queue.Queue()
    with watching(tmp_path, lambda count: counts.put(count) or "submitted") as watcher:
        watcher.observe(running(1, 8), first=True)
        watcher.observe(running(2, 7, leave=1), first=True)
        watcher.observe(running(3, 6, leave=1, node=1), first=True)
        assert counts.get(timeout=TIMEOUT) == 1


def test_a_replacement_that_could_not_be_submitted_is_tried_again(tmp_path: Path) -> None:
    answers = iter([SlurmError("sbatch: Unable to contact slurm controller"), KeyError("a defect"), "submitted"])
    reports: queue.Queue[str] = queue.Queue()

    def submit(count: int) -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with watching(tmp_path, submit, poll=0.001, report=reports.put) as watcher:
        watcher.observe(running(1, 8), first=True)
        watcher.observe(running(2, 7, node=1), first=True)
        lines = [reports.get(timeout=TIMEOUT) for _ in range(6)]
    assert lines == [
        "lost nodes: 1; submitting as many one-node jobs in their place",
        "a query to SLURM failed: sbatch: Unable to contact slurm controller",
        "lost nodes: 1; submitting as many one-node jobs in their place",
        "a query to SLURM failed: KeyError('a defect')",
        "lost nodes: 1; submitting as many one-node jobs in their place",
        "submitted",
    ]
