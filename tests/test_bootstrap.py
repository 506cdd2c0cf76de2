"""The entry point of an agent: the submission of jobs in place of lost nodes."""

import subprocess
import sys
from pathlib import Path

import pytest

from hpcelastic import bootstrap
from hpcelastic.errors import SlurmError
from hpcelastic.storage.paths import RunPaths


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'hpcelastic scale: no controller' >&2; exit 1", "hpcelastic scale: no controller"),
        ("exit 3", "hpcelastic scale: exit status 3"),
    ],
    ids=["with a message", "without one"],
)
def test_a_failed_submission_is_an_error(
    script: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(SlurmError, match=f"^{message}$"):
        bootstrap._submit_replacements(RunPaths(tmp_path), 1)


def test_a_submission_that_hangs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], timeout: float, **options: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(SlurmError, match="hpcelastic scale: no answer in 300 s"):
        bootstrap._submit_replacements(RunPaths(tmp_path), 1)
