"""Copies, in a run's directory, of the state of a run that is kept in a server.

They are for readers that cannot reach the server. The server decides; a copy may be older than the server's record.
The copy of a final state is a separate file, so an agent that writes the copy of an earlier state late cannot replace
it.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcelastic.errors import StoreError
from hpcelastic.protocol.state import Phase
from hpcelastic.storage import files
from hpcelastic.storage.bounded import bounded
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import Version

_WRITE_TIMEOUT = 1.0
"""The time limit for writing a copy, in seconds."""

_FINAL_PHASES = {phase.value for phase in Phase if phase.final}


class StateCopies:
    """The copies in the directory of one run."""

    def __init__(self, paths: RunPaths) -> None:
        self.root, self.where = paths.root, str(paths.known.parent)
        self._first_or_final_path, self._newest_path = paths.known, paths.newest

    def write_first(self, value: Any) -> None:
        """Write the first state of a run, before the server holds it."""
        files.publish(self._first_or_final_path, files.to_json({"version": 1, "value": value}))

    def write(self, document: Mapping[str, Any]) -> None:
        """Copy a version that the server holds; StoreError if the filesystem does not respond in time.

        The wait is bounded because the caller renews a lease, which must not expire while the filesystem hangs.
        """
        final = is_final(document["value"])
        path, data = self._first_or_final_path if final else self._newest_path, files.to_json(document)
        bounded(lambda: files.publish(path, data, durable=final), _WRITE_TIMEOUT, str(path))

    def read(self) -> Version | None:
        """Return the newest copied version; None if there is no copy."""
        found = [_read_version(self._first_or_final_path)]
        with contextlib.suppress(StoreError, KeyError, TypeError):  # it is not durable, so it may be damaged
            found.append(_read_version(self._newest_path))
        return max((version for version in found if version), key=lambda version: version.number, default=None)


def is_final(value: Mapping[str, Any]) -> bool:
    """Return True if the state with this JSON form is final."""
    return value["phase"] in _FINAL_PHASES


def _read_version(path: Path) -> Version | None:
    # Found by listing, because an NFS client caches that a name was absent.
    document = files.read_json(path) if path.name in files.names(path.parent) else None
    return Version(document["version"], document["value"]) if document is not None else None
