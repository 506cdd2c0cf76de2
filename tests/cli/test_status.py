"""``hpcelastic status``."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.backends.files import FileBackend
from hpcelastic.cli import main
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Phase
from hpcelastic.rendezvous.run import open_run
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import Register


@pytest.mark.parametrize(
    ("phase", "status"),
    [(Phase.JOINING, 0), (Phase.RUNNING, 0), (Phase.SUCCEEDED, 0), (Phase.FAILED, 1), (Phase.CLOSED, 1)],
)
def test_the_exit_status_shows_a_run_without_success(
    phase: Phase, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = RunPaths(tmp_path / "r")
    for directory in (paths.register, paths.leases):
        directory.mkdir(parents=True)
    state = open_run(FileBackend(paths), "r", Settings(), "test")
    Register(paths.register, "test").commit(1, encode(replace(state, phase=phase)))
    assert main(["status", str(paths.root)]) == status
    assert f"phase      {phase.value}" in capsys.readouterr().out
