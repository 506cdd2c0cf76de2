"""What went wrong on nodes of a run: one small file for each incident, kept for people and for the next decision.

A file is written once and never changed. To forgive is to put another name beside it: names that come are seen by
listing, names that go may be seen for seconds more.
"""

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.store import files
from hpcelastic.store.paths import RunPaths, safe_name

_KEPT, _FORGIVEN = ".json", ".forgiven"


class Trouble(str, Enum):
    """What went wrong on a node."""

    CHECK = "check failed"
    HARDWARE = "hardware error"
    """A worker failed by what only a broken machine does."""

    SUSPECT = "suspect failure"
    """A worker failed by what a machine may be the cause of, and a program too."""

    LOST = "lost"
    """It was in a round and has gone without a word."""

    FENCED = "fenced"
    """Its lease ran out while those of others held: its workers were killed."""


@dataclass(frozen=True)
class Incident:
    """Something that went wrong on a node, once."""

    host: str
    cause: Trouble
    message: str
    when: float
    """Seconds since the epoch, on the clock of the node that noted it: for people, and to let it fade."""

    round: int = 0
    """The run's round then; 0 before the first."""


def note(paths: RunPaths, incident: Incident) -> None:
    """Keep ``incident``; raises StoreError."""
    files.make_directory(paths.incidents)
    name = f"{safe_name(incident.host)}~{secrets.token_hex(6)}{_KEPT}"
    files.publish(paths.incidents / name, files.to_json(encode(incident)))


def note_lost(paths: RunPaths, host: str, round: int, reason: str, cause: Trouble = Trouble.LOST) -> None:
    """Keep that ``host`` was lost in ``round``; raises StoreError."""
    note(paths, Incident(host, cause, reason, time.time(), round))


def read_incidents(paths: RunPaths, host: str | None = None) -> tuple[Incident, ...]:
    """The incidents that nobody has forgiven, of all nodes or of one, by time; what makes no sense is left out."""
    found = (_read(paths, name) for name in _standing(paths, host))
    return tuple(sorted((incident for incident in found if incident), key=lambda incident: incident.when))


def forgive(paths: RunPaths, hosts: Iterable[str] | None = None) -> tuple[str, ...]:
    """Let the incidents of ``hosts``, or of all nodes, count no longer; the nodes that had any. Raises StoreError."""
    wanted = None if hosts is None else {safe_name(host) for host in hosts}
    names = [name for name in _standing(paths) if wanted is None or _host(name) in wanted]
    for name in names:
        files.publish(paths.incidents / f"{name.removesuffix(_KEPT)}{_FORGIVEN}", b"")
    return tuple(sorted({_host(name) for name in names}))


def _standing(paths: RunPaths, host: str | None = None) -> list[str]:
    names = files.names(paths.incidents)
    forgiven = {f"{name.removesuffix(_FORGIVEN)}{_KEPT}" for name in names if name.endswith(_FORGIVEN)}
    kept = (name for name in names if name.endswith(_KEPT) and name not in forgiven)
    return [name for name in kept if host is None or _host(name) == safe_name(host)]


def _host(name: str) -> str:
    return name.rpartition("~")[0]


def _read(paths: RunPaths, name: str) -> Incident | None:
    try:
        data = files.read_json(paths.incidents / name)
        return None if data is None else decode(Incident, data)
    except (DecodeError, StoreError):
        return None  # one that can't be read must not stop a run
