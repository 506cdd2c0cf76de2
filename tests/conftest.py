"""What all tests use: a registry of runs that is not the user's own; filesystems that take seconds to start, each
started once for all tests that use it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from tests.filesystems.availability import require, why_no_moosefs, why_no_nfs
from tests.filesystems.moosefs import MooseMountSet, moosefs_mounts
from tests.filesystems.nfs import NfsMountSet, nfs_mounts

pytest_plugins = ["tests.tiers"]

os.environ["HPCELASTIC_CONFIG"] = ""  # the profiles of whoever runs the tests


@pytest.fixture(autouse=True)
def registry_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test notes a run where its user would find it, nor finds one of another test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / f"state-{secrets.token_hex(6)}"))


@pytest.fixture(scope="session")
def nfs() -> Iterator[dict[str, NfsMountSet]]:
    """All mount sets of one NFS server, by name. Tests that use it carry `xdist_group("nfs")`, or it starts twice."""
    require(why_no_nfs())
    with nfs_mounts() as mounts:
        yield mounts


@pytest.fixture(scope="session")
def moosefs() -> Iterator[MooseMountSet]:
    """Tests that use it carry `xdist_group("moosefs")`, or it starts twice."""
    require(why_no_moosefs())
    with moosefs_mounts() as mounts:
        yield mounts
