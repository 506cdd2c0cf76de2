"""A record of bad nodes that the runs of several users share.

The record is a directory in which its users may create files. Its sticky bit keeps them from removing or replacing the
files of others. A run adds the incidents that blame the hardware of a node, one small file each. The author of an
incident is the owner of its file, and its time is that of the filesystem. Nothing in the files is trusted: the names of
nodes go to options of SLURM, and the messages to terminals.
"""

import contextlib
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.health.incidents import (
    Incident,
    IncidentKind,
    forgive,
    forgiven_name,
    host_of,
    incident_names,
    new_name,
)
from hpcelastic.protocol.codec import decode, encode
from hpcelastic.storage import files
from hpcelastic.storage.bounded import bounded
from hpcelastic.storage.foreign import owner_of, read_foreign, user_name

SHARED = frozenset({IncidentKind.CHECK, IncidentKind.HARDWARE})
"""The kinds of incidents that are shared: those that only the machine causes."""

KEPT = 90 * 86400.0
"""Seconds for which incidents are kept. Later, their author's next incident removes them."""

_MOST = 4096
"""Maximum number of files that are read."""

_MAX_SIZE = 4096
"""Maximum size of a file in bytes."""

_MAX_MESSAGE = 300
"""Maximum number of characters of a message that are shown."""

_READ_TIMEOUT = 5.0
"""Seconds within which the record must have been read. It may be on another filesystem than the run."""

_HALF_LIVES = 10
"""Half-lives after which an incident has no weight."""

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")


@dataclass(frozen=True)
class RecordedIncident:
    """The content of the file of an incident."""

    host: str
    cause: IncidentKind
    message: str
    run: str
    """The directory of the run that has recorded it."""

    round: int = 0


@dataclass(frozen=True)
class Entry:
    """An incident in the record."""

    node: str
    cause: IncidentKind
    message: str
    time: float
    """Seconds since the epoch, by the clock of the filesystem."""

    user: str
    run: str
    round: int
    forgiven_by: str
    """The user who has forgiven it; empty if it is not forgiven."""

    @property
    def incident(self) -> Incident:
        """The incident, with its origin in the message."""
        message = f"{self.message} (recorded by {self.user}, run {self.run})"
        return Incident(self.node, self.cause, message, self.time, self.round)


class NodeRecord:
    """The record in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def check(self) -> None:
        """Raise ConfigError if this user cannot take part in the record, or it does not protect the files of others."""
        where = f"the shared record of nodes {self._directory}"
        if not self._directory.is_dir():
            raise ConfigError(f"{where} is no directory; create it: install -d -m 1770 -g GROUP {self._directory}")
        if not os.access(self._directory, os.R_OK | os.W_OK | os.X_OK):
            raise ConfigError(f"{where}: you may not read and write it; ask its owner, {owner_of(self._directory)}")
        mode = stat.S_IMODE(self._directory.stat().st_mode)
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
            raise ConfigError(
                f"{where} has mode {mode:o}, so its users can remove the files of others; chmod +t {self._directory}"
            )

    def add(self, incident: Incident, run: Path) -> None:
        """Add an incident if it is of a kind that is shared. Raises StoreError."""
        if incident.cause not in SHARED or not _HOST.fullmatch(incident.host):
            return
        content = RecordedIncident(
            incident.host, incident.cause, incident.message[:_MAX_MESSAGE], str(run), incident.round
        )
        path = self._directory / new_name(incident.host)
        files.publish(path, files.to_json(encode(content)))
        with files.as_store_error(path):
            path.chmod(0o644)  # the mode of the directory decides who may read it
            self._remove_old(time.time() - KEPT)

    def entries(self, host: str | None = None) -> list[Entry]:
        """Return the incidents of all nodes or of one, by time. Invalid files are skipped. Raises StoreError."""
        names = files.names(self._directory)
        present = set(names)
        return sorted(self._entries(incident_names(names, host)[:_MOST], present), key=lambda entry: entry.time)

    def forgive(self, hosts: Iterable[str]) -> set[str]:
        """Forgive the incidents of ``hosts``. Return those that had any. Raises StoreError."""
        return forgive(self._directory, hosts)

    def _entries(self, names: Iterable[str], present: set[str]) -> Iterator[Entry]:
        for name in names:
            with contextlib.suppress(OSError, ValueError, RecursionError):
                found = read_foreign(self._directory / name, _MAX_SIZE)
                if found is None or found.data is None:
                    continue
                content = decode(RecordedIncident, json.loads(found.data))
                if content.host == host_of(name) and content.cause in SHARED and _HOST.fullmatch(content.host):
                    forgiven = forgiven_name(name)
                    yield Entry(
                        node=content.host,
                        cause=content.cause,
                        message=_printable(content.message),
                        time=found.changed,
                        user=user_name(found.uid),
                        run=_printable(content.run),
                        round=content.round,
                        forgiven_by=self._owner(forgiven) if forgiven in present else "",
                    )

    def _owner(self, name: str) -> str:
        """Return the owner of a file, and not that of the target of a link."""
        return user_name((self._directory / name).lstat().st_uid)

    def _remove_old(self, before: float) -> None:
        """Remove files of this user that are older than ``before``, in seconds since the epoch."""
        for name in files.names(self._directory):
            with contextlib.suppress(OSError):
                status = (self._directory / name).lstat()
                if status.st_uid == os.geteuid() and status.st_ctime < before:
                    (self._directory / name).unlink()


def recorded_incidents(directory: str | None, run: Path, half_life: float, host: str | None = None) -> list[Incident]:
    """Return the unforgiven incidents that other runs than ``run`` have recorded, of all nodes or of one.

    Those whose weight is negligible are omitted. Without a ``directory``, or if it cannot be read, there are none: a
    record that is not available must not stop a run. ``half_life`` in seconds.
    """
    if directory is None:
        return []
    record = NodeRecord(Path(directory))
    try:
        entries = bounded(lambda: record.entries(host), _READ_TIMEOUT, directory)
    except StoreError:
        return []
    since = time.time() - _HALF_LIVES * half_life
    return [e.incident for e in entries if not e.forgiven_by and e.run != str(run) and e.time > since]


def _printable(text: str) -> str:
    """Return the first characters of a text, without those that control a terminal."""
    return "".join(c if c.isprintable() else " " for c in text[:_MAX_MESSAGE])
