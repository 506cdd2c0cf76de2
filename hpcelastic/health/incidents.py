"""Incidents on the nodes of a run: one small file for each incident, for users and for the next decision.

A file is written once and never changed. An incident is forgiven by a second file beside it, because a new name is seen
by listing, while a removed name may be seen for seconds more.
"""

import secrets
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths, safe_name

_INCIDENT_SUFFIX, _FORGIVEN_SUFFIX = ".json", ".forgiven"


class IncidentKind(str, Enum):
    """The kind of an incident."""

    CHECK = "check failed"
    HARDWARE = "hardware error"
    """A worker failed with an error that only a broken machine causes, or the machine itself has reported it."""

    SUSPECT = "suspect failure"
    """A worker failed with an error that a machine or a program may cause."""

    LOST = "lost"
    """The node was in a round, and disappeared without publishing its departure."""

    FENCED = "fenced"
    """The node's lease expired while the leases of others held, and its workers were killed."""


@dataclass(frozen=True)
class Incident:
    """One incident on a node."""

    host: str
    cause: IncidentKind
    message: str
    when: float
    """Seconds since the epoch, by the clock of the node that recorded it: for display and the decay of its weight."""

    round: int = 0
    """The run's round at that time; 0 before the first."""


def record(paths: RunPaths, incident: Incident) -> None:
    """Write ``incident`` to the run's directory; raises StoreError."""
    files.make_directory(paths.incidents, within=paths.root)
    files.publish(paths.incidents / new_name(incident.host), files.to_json(encode(incident)))


def record_lost(paths: RunPaths, host: str, round: int, reason: str, cause: IncidentKind = IncidentKind.LOST) -> None:
    """Record that ``host`` was lost in ``round``; raises StoreError."""
    record(paths, Incident(host, cause, reason, time.time(), round))


def read_incidents(paths: RunPaths, host: str | None = None) -> tuple[Incident, ...]:
    """Return the unforgiven incidents of all nodes or of one, sorted by time. Invalid files are skipped."""
    found = (_read(paths, name) for name in unforgiven(files.names(paths.incidents), host))
    return tuple(sorted((incident for incident in found if incident), key=lambda incident: incident.when))


def forgive(directory: Path, hosts: Iterable[str] | None = None) -> set[str]:
    """Forgive the incidents of ``hosts``, or of all nodes. Return the nodes that had any. Raises StoreError."""
    wanted = None if hosts is None else {safe_name(host) for host in hosts}
    names = [name for name in unforgiven(files.names(directory)) if wanted is None or host_of(name) in wanted]
    for name in names:
        files.publish(directory / forgiven_name(name), b"")
    return {host_of(name) for name in names}


# The names of the files


def new_name(host: str) -> str:
    """Return a new name of the file of an incident."""
    return f"{safe_name(host)}~{secrets.token_hex(6)}{_INCIDENT_SUFFIX}"


def host_of(name: str) -> str:
    """Return the node in the name of the file of an incident."""
    return name.rpartition("~")[0]


def forgiven_name(name: str) -> str:
    """Return the name of the file that forgives the incident in the file ``name``."""
    return f"{name.removesuffix(_INCIDENT_SUFFIX)}{_FORGIVEN_SUFFIX}"


def incident_names(names: Iterable[str], host: str | None = None) -> list[str]:
    """Return those of the names that are of incidents, of all nodes or of one."""
    found = (name for name in names if name.endswith(_INCIDENT_SUFFIX))
    return [name for name in found if host is None or host_of(name) == safe_name(host)]


def unforgiven(names: Collection[str], host: str | None = None) -> list[str]:
    """Return those of the names that are of unforgiven incidents, of all nodes or of one."""
    present = set(names)
    return [name for name in incident_names(names, host) if forgiven_name(name) not in present]


def _read(paths: RunPaths, name: str) -> Incident | None:
    try:
        data = files.read_json(paths.incidents / name)
        return None if data is None else decode(Incident, data)
    except (DecodeError, StoreError):
        return None  # an unreadable incident must not stop a run
