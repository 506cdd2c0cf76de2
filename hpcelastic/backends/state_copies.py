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
        document = self.read_document()
        return None if document is None else Version(document["version"], document["value"])

    def read_document(self) -> Mapping[str, Any] | None:
        """Return the newest copied version as the server has held it; None if there is no copy."""
        found = [_read(self._first_or_final_path)]
        with contextlib.suppress(StoreError):  # it is not durable, so it may be damaged
            found.append(_read(self._newest_path))
        return max((copy for copy in found if copy), key=lambda copy: copy["version"], default=None)


def is_final(value: Mapping[str, Any]) -> bool:
    """Return True if the state with this JSON form is final."""
    return value["phase"] in _FINAL_PHASES


def _read(path: Path) -> Mapping[str, Any] | None:
    # Found by listing, because an NFS client caches that a name was absent.
    document = files.read_json(path) if path.name in files.names(path.parent) else None
    if document is None:
        return None
    if not (isinstance(document, dict) and {"version", "value"} <= document.keys()):
        raise StoreError(f"{path}: is not the state of a run")
    return document
