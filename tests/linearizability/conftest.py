"""The filesystems on which histories are recorded."""

from tests.filesystems.shared import shared, started_filesystems

__all__ = ["shared", "started_filesystems"]
