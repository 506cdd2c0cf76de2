"""A working directory of its own for every test, with a script to run."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    return tmp_path
