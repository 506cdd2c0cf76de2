"""Queries to SLURM about a run."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.agent.batch_system import PendingCapacity
from hpcelastic.backends.files import FileBackend
from hpcelastic.protocol.state import Member, NodeState
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.queue import QueuedJob
from hpcelastic.slurm.queue_watcher import QueueWatcher, WatchedRun
from hpcelastic.storage import files
from hpcelastic.storage.leases import OwnLease
from hpcelastic.storage.paths import RunPaths

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
