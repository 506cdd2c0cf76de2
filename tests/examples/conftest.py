"""A directory for the runs of an example that uses ``tmp_path/examples``. Their agents end with the test."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.api.jobs import local_agents
from hpcelastic.api.run import find_runs


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "examples" / "runs"
    yield directory
    for run in find_runs(directory) if directory.is_dir() else []:
        run.cancel()
        deadline = time.monotonic() + 60
        while local_agents(run.reader.backend()):
            assert time.monotonic() < deadline, f"agents of {run} do not end"
            time.sleep(0.1)
