"""Reports of failed ranks in torch's ChildFailedError."""

from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from hpcelastic.protocol.events import WorkersStarted
from hpcelastic.protocol.state import Failure
from hpcelastic.pytorch.failures import process_failures
from hpcelastic.storage.events import event_line
from hpcelastic.storage.paths import RunPaths


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "r")
    paths.events.mkdir(parents=True)
    return paths


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([997.2], id="the clock of another node is behind"),
        pytest.param([1000.0, 1000.9], id="in the same second"),
        pytest.param([1003.0, 998.0], id="one clock is ahead and one behind"),
        pytest.param([], id="alone"),
    ],
)
def test_the_first_failure_is_the_root_cause_whatever_the_clocks_of_the_nodes_are(
    others: list[float], paths: RunPaths
) -> None:
    root = Failure(1, "b@1", 5, 0, 1, "ValueError: bad sample", timestamp=1000.0)
    effects = [
        Failure(1, "a@1", rank, 0, 1, "Connection closed", timestamp=time, echo=True)
        for rank, time in enumerate(others)
    ]
    made = process_failures(paths, (root, *effects))
    assert list(made) == [5, *range(len(others))]
    assert ChildFailedError("train", made).get_first_failure()[0] == 5


FAILURES = (Failure(2, "a@1", 0, 0, 1, "exit status 1"), Failure(2, "b@1", 1, 0, 1, "exit status 1"))


def started(round: int, rank: int, pid: int) -> bytes:
    """Return a line of a log that tells of a worker."""
    event = WorkersStarted(
        round=round,
        world_size=2,
        group_rank=rank,
        group_world_size=2,
        role_rank=rank,
        role_world_size=2,
        pids={rank: pid},
        cpus="0",
    )
    return event_line(event, "n")


def test_only_the_logs_of_the_nodes_whose_workers_failed_are_read(paths: RunPaths) -> None:
    paths.event_log("a@1").write_bytes(started(1, 0, 70) + started(2, 0, 71))
    paths.event_log("b@1").write_bytes(started(2, 1, 81) + started(3, 1, 82))
    paths.event_log("c@1").mkdir()  # an error if it is read
    assert {rank: made.pid for rank, made in process_failures(paths, FAILURES).items()} == {0: 71, 1: 81}


def test_without_a_readable_log_the_process_of_a_rank_is_unknown(paths: RunPaths) -> None:
    paths.event_log("a@1").mkdir()
    assert {rank: made.pid for rank, made in process_failures(paths, FAILURES).items()} == {0: 0, 1: 0}
