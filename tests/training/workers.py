"""Functions by which a test acts as a worker, and the runs of these workers."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.backends.files import FileBackend
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.settings import Settings
from hpcelastic.rendezvous.run import open_run, read_state
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import Register
from hpcelastic.training import fence


def make_run(root: Path, round: int = 1) -> Path:
    """Create a run whose newest round is ``round``, or continue the existing run."""
    paths = RunPaths(root)
    files.make_directory(paths.register)
    state = open_run(FileBackend(paths), "r", Settings(), "test")
    register = Register(paths.register, "test")
    assert register.commit(register.read().number, encode(replace(state, round=round)))
    assert read_state(FileBackend(paths)).round == round
    return root


def become(monkeypatch: pytest.MonkeyPatch, run: Path, round: int, rank: int = 0) -> None:
    """Act as a worker that has just started."""
    for name, value in {"HPCELASTIC_RUN_DIR": run, "HPCELASTIC_ROUND": round, "RANK": rank}.items():
        monkeypatch.setenv(name, str(value))
    fence._run_nonce.cache_clear()


def become_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as a process that no agent has started."""
    for name in list(os.environ):
        if name.startswith("HPCELASTIC_") or name == "RANK":
            monkeypatch.delenv(name)


def listing(directory: Path) -> list[str]:
    """Return the names in ``directory`` that are meant for readers."""
    return sorted(name for name in os.listdir(directory) if not name.startswith(".publishing-"))


def drafts(directory: Path) -> list[str]:
    """Return the drafts that are left in ``directory``."""
    return [path.name for path in directory.rglob("*") if path.name.endswith(".draft") or "revoked" in path.name]
