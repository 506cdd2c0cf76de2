"""Reports of failed ranks in torch's ChildFailedError."""

from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from hpcelastic.protocol.state import Failure
from hpcelastic.pytorch.failures import process_failures
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
