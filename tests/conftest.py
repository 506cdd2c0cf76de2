"""Filesystems that take seconds to start, each started once for all tests that use it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.filesystems.availability import require, why_no_moosefs, why_no_nfs
from tests.filesystems.moosefs import MooseMountSet, moosefs_mounts
from tests.filesystems.nfs import NfsMountSet, nfs_mounts

os.environ["HPCELASTIC_CONFIG"] = ""  # the profiles of whoever runs the tests


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
