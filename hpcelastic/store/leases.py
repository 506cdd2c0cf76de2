"""Leases: one file for each node, written by its owner alone, whose name says nearly all (see `lease_names`).

A heartbeat renames the file, and one listing shows all leases. An observer ages a lease on its own clock, from the end
of the listing that first showed its name to the start of the listing that still shows it: no time stamp crosses
machines, and no modification time is believed. A listing that does not show a name says nothing about it, for in a
large directory it may miss a file that is renamed at that moment: who is missed is dead only if it is missed all along
for as long, from the end of the first listing without it, and so often that no chance could have it.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.protocol.state import Member, Seen, Stand, name_of
from hpcelastic.store import files
from hpcelastic.store.errnos import doubtful, repeated
from hpcelastic.store.lease_names import LeaseName, member_of, newest, parse, summary, written

_FINAL = (Stand.FAILED, Stand.SUCCEEDED, Stand.LEFT)
"""What must outlive a server that loses its memory; all else is said again by a node that lives, at its next beat, and
counts for nothing once the node is dead."""

_LOOKS = 3
"""For so many looks what a node said before stands while the content of its new word can't be read."""


_MISSES = 5
"""In so many listings on end a node must be missing before it can be dead: each misses a living one in 100 at most."""


@dataclass(frozen=True)
class Lease:
    """What a lease says."""

    beat: int
    member: Member
    path: Path = field(compare=False)
    """Where it was found; at its next beat it is elsewhere."""


class OwnLease:
    """The lease of this node.

    At any moment after the first renewal one of the node's names is there, and the greatest says what was said last.
    """

    def __init__(self, directory: Path, node: str) -> None:
        self._directory, self._node = directory, node
        self._word = self._beat = 0
        self._summary = ""
        self._said: Member | None = None
        self._name = ""
        """Where the lease was when it was last renewed."""

        self._left: set[str] = set()
        """Names that it may have had, and that may still be there."""

    def renew(self, member: Member) -> None:
        """Publish the next beat; durably if the node says what it may not be there to say again."""
        self._beat += 1
        if member != self._said or not self._moved():
            self._publish(member)

    def _moved(self) -> bool:
        """Rename the lease for its next beat; False if it isn't where it was."""
        name = written(self._node, self._word, self._beat, self._summary)
        with files.explained(self._directory / name):
            try:
                repeated(lambda: os.replace(self._directory / self._name, self._directory / name))
            except OSError as error:
                if not doubtful(error):
                    raise
                if not self._listed(name):  # else the reply was lost
                    if isinstance(error, FileNotFoundError):
                        return False  # moved by an earlier attempt, or removed by somebody
                    raise
        self._name = name
        return True

    def _listed(self, name: str) -> bool:
        """Whether a name is there; all others of this node are noted as left."""
        texts = [text for text in files.names(self._directory) if text.startswith(f"{self._node}~")]
        self._left.update(text for text in texts if text != name)
        return name in texts

    def _publish(self, member: Member) -> None:
        self._word += 1  # even where the last attempt has failed: it may have succeeded, or still will
        self._said, self._summary = None, summary(member)
        if self._name:
            self._left.add(self._name)
        name = written(self._node, self._word, self._beat, self._summary)
        self._left.add(name)
        files.publish(self._directory / name, files.to_json(encode(member)), durable=member.stand in _FINAL)
        self._left.remove(name)
        self._said, self._name = member, name
        self._tidy()

    def _tidy(self) -> None:
        """Remove what is left of earlier words; what can't be removed now is outdone by its successor."""
        with suppress(StoreError):
            for name in sorted(self._left):
                files.remove(self._directory / name)
                self._left.remove(name)
        files.stamp(self._directory)


@dataclass
class _Watched:
    since: float
    """The end of the listing that first showed ``name``; of the first listing, where none ever has."""

    name: LeaseName | None = None
    missed: float = 0.0
    """The end of the first of those listings, up to the last one, that did not show ``name``."""

    misses: int = 0
    """How many listings those are."""

    member: Member | None = None
    unread: int = 0
    """In how many looks the content that must be read could not be."""

    seen: Seen = field(default_factory=lambda: Seen(None, alive=True, proved=False))

    @property
    def still_since(self) -> float:
        """From when its age counts."""
        return self.missed if self.misses else self.since


class LeaseObserver:
    """Watches the leases of all nodes of a run, on the monotonic ``clock`` of this process (seconds)."""

    def __init__(self, directory: Path, expiry: float, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._expiry = expiry
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._last = float("-inf")
        """The end of the last listing. What has moved since then has moved before our eyes, unless that is so long ago
        that it may be dead again."""

    def observe(self, expected: Iterable[str]) -> dict[str, Seen]:
        """All nodes that have a lease, and those ``expected`` to have one; each alive until proved otherwise."""
        before = self._clock()
        listed = newest(files.names(self._directory))
        after = self._clock()
        nodes = sorted({*listed, *expected, *self._missed(listed)})
        found = {node: self._look(node, listed.get(node), before, after) for node in nodes}
        self._last = after
        return found

    def expires(self, node: str) -> float:
        """When a listing that shows the node's lease unmoved proves it dead; infinite if it was never seen."""
        watched = self._watched.get(node)
        return watched.still_since + self._expiry if watched and watched.name else float("inf")

    def mark(self, node: str) -> str | None:
        """The node's name as last listed: it changes whenever its lease moves. None if it was never listed."""
        watched = self._watched.get(node)
        return watched.name.text if watched and watched.name else None

    def _missed(self, listed: dict[str, LeaseName]) -> list[str]:
        """Nodes that have had a lease, which this listing happens not to show."""
        gone = self._watched.keys() - listed.keys()
        return [node for node in gone if self._watched[node].name and self._watched[node].seen.alive]

    def _look(self, node: str, name: LeaseName | None, before: float, after: float) -> Seen:
        watched = self._watched.get(node)
        if watched is None:
            watched = self._watched[node] = _Watched(after)
        last, seen = watched.name, watched.seen
        renewed = name is not None and (last is None or name.follows(last))
        proved = seen.proved
        if renewed:
            proved = before - self._last <= self._expiry
            watched.name, watched.since, watched.misses = name, after, 0
            self._hear(watched, last)
        elif name is not None and name == last:
            watched.misses = 0
        else:
            watched.missed = watched.missed if watched.misses else after
            watched.misses += 1
        if watched.unread and not renewed:
            self._read(watched)
        expired = before - watched.still_since > self._expiry and watched.misses not in range(1, _MISSES)
        alive = not expired and (renewed or seen.alive)
        if alive is not seen.alive or proved is not seen.proved or watched.member is not seen.member:
            watched.seen = seen = Seen(watched.member, alive=alive, proved=proved)
        return seen

    def _hear(self, watched: _Watched, last: LeaseName | None) -> None:
        """Take in what a renewed lease says, if that may be another word than it said ``last``."""
        name = watched.name
        assert name is not None
        if last is not None and name.word == last.word >= 0:
            return
        member, whole = member_of(name)
        watched.unread = 0
        if whole:
            watched.member = member
        else:
            self._read(watched)

    def _read(self, watched: _Watched) -> None:
        """Take in the content of a lease whose name does not say all.

        What the name says of it is believed only after some looks in vain: without its report a failure is none.
        """
        name = watched.name
        assert name is not None
        member = self._content(name)
        watched.unread = 0 if member else watched.unread + 1
        if member is None:
            member, _ = member_of(name)
            new = watched.member is None and member is not None and member.stand is not Stand.FAILED
            if not new and watched.unread <= _LOOKS:
                return
        watched.member = member or watched.member

    def _content(self, name: LeaseName) -> Member | None:
        """What a lease's file says, wherever it has moved to since it was listed; None if that can't be read."""
        with suppress(StoreError):
            # Only what is listed is opened: a name that was asked for when it was absent stays so for half a minute.
            member, there = _member(self._directory / name.text)
            if there:
                return member
            moved = newest(files.names(self._directory)).get(name.node)
            if moved is not None and moved.word == name.word:
                return _member(self._directory / moved.text)[0]
        return None


def _member(path: Path) -> tuple[Member | None, bool]:
    """What a lease's content says, None where it can't be read or understood; and whether the file may be there."""
    try:
        data = files.read_json(path)
        return (decode(Member, data), True) if data is not None else (None, False)
    except (DecodeError, StoreError):
        return None, True


def read_lease(path: Path) -> Lease | None:
    """The lease in ``path``; None where there is none, or none that can be understood (an alien's, a newer format)."""
    name = parse(path.name)
    if name is None:
        return None
    member, _ = _member(path)
    return Lease(name.beat, member, path) if member is not None else None


def read_leases(directory: Path, of: str = "") -> dict[str, Lease]:
    """All leases in ``directory``, by node; with ``of``, those of the nodes that have that name.

    Where the content can't be read, a lease says what its name says.
    """
    found: dict[str, Lease] = {}
    moved: dict[str, LeaseName] = {}
    for _ in range(_LOOKS):  # one that is renewed meanwhile is looked for under its next name
        names = newest(files.names(directory))
        moved = {node: names[node] for node in sorted(names) if node not in found and of in ("", name_of(node))}
        for node, name in moved.items():
            member, there = _member(directory / name.text)
            member = member or (member_of(name)[0] if there else None)
            if member is not None:
                found[node] = Lease(name.beat, member, directory / name.text)
    return found
