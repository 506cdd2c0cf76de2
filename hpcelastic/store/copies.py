"""Copies, in a run's directory, of the state of a run that is kept in a server.

They are for readers that cannot ask the server. The server decides; a copy may be older than what the server holds.
The copy of a final state is a file of its own: an agent that is slow to write the copy of an earlier state cannot
replace it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcelastic.protocol.state import Phase
from hpcelastic.store import files
from hpcelastic.store.bounded import bounded
from hpcelastic.store.paths import RunPaths
from hpcelastic.store.register import Version

_WRITE_TIMEOUT = 1.0
"""Seconds that the filesystem may take to write a copy."""

_FINAL = {phase.value for phase in Phase if phase.final}


class StateCopies:
    """The copies in the directory of one run."""

    def __init__(self, paths: RunPaths) -> None:
        self.where = str(paths.known.parent)
        self._bound, self._newest = paths.known, paths.newest

    def announce(self, value: Any) -> None:
        """Write the state with which a run begins, before the server holds it."""
        files.publish(self._bound, files.to_json({"version": 1, "value": value}))

    def write(self, document: Mapping[str, Any]) -> None:
        """Copy a version that the server holds; StoreError if the filesystem does not take it in time.

        The wait is bounded because the caller renews a lease: a filesystem that hangs must not cost it that lease.
        """
        final = is_final(document["value"])
        path, data = self._bound if final else self._newest, files.to_json(document)
        bounded(lambda: files.publish(path, data, durable=final), _WRITE_TIMEOUT, str(path))

    def read(self) -> Version | None:
        """The newest version that was copied; None if there is no copy."""
        found = [version for path in (self._bound, self._newest) if (version := _version(path)) is not None]
        return max(found, key=lambda version: version.number, default=None)


def is_final(value: Mapping[str, Any]) -> bool:
    """Whether a run whose state has this JSON form has ended."""
    return value["phase"] in _FINAL


def _version(path: Path) -> Version | None:
    # By listing: an NFS client remembers that a name was absent.
    document = files.read_json(path) if path.name in files.names(path.parent) else None
    return Version(document["version"], document["value"]) if document is not None else None
