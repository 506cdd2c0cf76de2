"""The filesystems on which histories are recorded."""

from tests.filesystems.conftest import moosefs, nfs
from tests.filesystems.shared import shared, started_filesystems

__all__ = ["moosefs", "nfs", "shared", "started_filesystems"]
