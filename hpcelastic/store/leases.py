"""Leases: one file for each node, written by its owner alone.

A lease holds a counter and what the node says of itself. An observer ages it on its own clock, from the end of the
read that first showed the counter to the start of the read that still shows it: no time stamp crosses machines, and
no modification time is believed.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.protocol.state import Member, Seen
from hpcelastic.store import files


@dataclass(frozen=True)
class Lease:
    """What a lease file holds."""

    beat: int
    member: Member


class OwnLease:
    """The lease of this node."""

    def __init__(self, directory: Path, node: str) -> None:
        self._path = directory / f"{node}.json"
        self._beat = 0
        self._said: Member | None = None

    def renew(self, member: Member) -> None:
        """Publish the next beat; durably if the node says something new."""
        self._beat += 1
        data = files.to_json(encode(Lease(self._beat, member)))
        files.publish(self._path, data, durable=member != self._said)
        self._said = member


@dataclass
class _Watched:
    beat: bytes | None
    """The lease as it was last read. Any change of it is a sign of life, in whatever format."""

    since: float
    member: Member | None
    proved: bool = False


class LeaseObserver:
    """Watches the leases of all nodes of a run, on the monotonic ``clock`` of this process (seconds)."""

    def __init__(self, directory: Path, expiry: float, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._expiry = expiry
        self._clock = clock
        self._watched: dict[str, _Watched] = {}

    def observe(self, expected: Iterable[str]) -> dict[str, Seen]:
        """All nodes that have a lease, and those ``expected`` to have one; each alive until proved otherwise."""
        listed = {name[:-5] for name in files.names(self._directory) if name.endswith(".json")}
        return {node: self._look(node, node in listed) for node in sorted(listed | set(expected))}

    def _look(self, node: str, listed: bool) -> Seen:
        before = self._clock()
        watched = self._watched.get(node)
        try:
            # A name that was asked for before it existed stays absent for half a minute: only what is listed is opened.
            beat = files.read(self._directory / f"{node}.json") if listed else None
        except OSError:  # no evidence of anything, so its age begins anew
            watched = watched or _Watched(None, before, None)
            beat, watched.since = watched.beat, self._clock()
            self._watched[node] = watched
        if watched is None or (beat is not None and beat != watched.beat):
            renewed = watched is not None and watched.beat is not None
            member = _member(beat) or (watched.member if watched else None)
            watched = _Watched(beat, self._clock(), member, renewed)
            self._watched[node] = watched
        return Seen(watched.member, alive=before - watched.since <= self._expiry, proved=watched.proved)


def _member(content: bytes | None) -> Member | None:
    """What a lease says; None where it can't be understood (an alien's, a newer format)."""
    try:
        return decode(Lease, json.loads(content or b"null")).member
    except (DecodeError, ValueError):
        return None


def read_lease(path: Path) -> Lease | None:
    """The lease in ``path``; None where there is none, or none that can be understood (an alien's, a newer format)."""
    try:
        return decode(Lease, files.read_json(path))
    except (DecodeError, StoreError):
        return None


def read_leases(directory: Path) -> dict[str, Lease]:
    """All leases in ``directory``, by node."""
    found = {name[:-5]: read_lease(directory / name) for name in files.names(directory) if name.endswith(".json")}
    return {node: lease for node, lease in found.items() if lease is not None}
