"""Leases: one file for each node, written by its owner alone. The file's name holds nearly all (see `lease_names`).

A heartbeat renames the file, and so does a change that the name can hold. The content is written anew only for the
other changes, and what the name holds counts more than the content. One listing shows all leases.
`hpcelastic.protocol.liveness` judges their ages. No time stamp crosses machines, and modification times are not used.
"""

import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.protocol.liveness import NOT_SEEN, LeaseAge
from hpcelastic.protocol.settings import Expiry
from hpcelastic.protocol.state import Member, NodeState, Seen, name_of
from hpcelastic.storage import files
from hpcelastic.storage.errnos import may_have_succeeded, retry
from hpcelastic.storage.lease_names import (
    LeaseName,
    is_complete,
    lease_name,
    member_of,
    newest,
    parse,
    same_but_state,
    summary,
)
from hpcelastic.storage.observer import LivenessObserver

_DURABLE_STATES = (NodeState.FAILED, NodeState.SUCCEEDED, NodeState.LEFT)
"""The states that must survive a server that loses its memory. A living node publishes any other state again at its
next heartbeat, and any other state of a dead node does not matter."""

_MAX_READ_FAILURES = 3
"""The number of polls for which a node's previous member stays valid while its new content can't be read."""


@dataclass(frozen=True)
class Lease:
    """The content of a lease."""

    heartbeat: int
    member: Member
    path: Path = field(compare=False)
    """The file at the time of reading. The next heartbeat renames it."""

    duration: float | None = None
    """In seconds; None if it is unknown."""


class OwnLease:
    """The lease of this node.

    At any moment after the first renewal at least one of the node's names exists, and the greatest is the newest.
    """

    def __init__(self, directory: Path, node: str) -> None:
        self._directory, self._node = directory, node
        self._revision = self._heartbeat = 0
        self._summary = ""
        self._published: Member | None = None
        self._duration: float | None = None
        self._name = ""
        """The name of the file after the last renewal."""

        self._stale_names: set[str] = set()
        """Earlier names of the file that may still exist."""

    def renew(self, member: Member, duration: float | None = None) -> None:
        """Publish the next heartbeat; durably if the state is one that the node may not be able to publish again.

        The lease then holds for ``duration`` seconds from the call; for the longest possible time if it is None.
        """
        self._heartbeat += 1
        self._duration = duration
        if member == self._published:
            text, renamed = self._summary, self._rename()
        else:
            text = summary(member)
            renamed = self._fits_the_name(member, text) and self._rename_to(member, text)
        if not renamed:
            self._publish(member, text)

    def _fits_the_name(self, member: Member, text: str) -> bool:
        """Return whether a rename can publish ``member``: the file has all of it that its summary does not hold."""
        before = self._published
        if before is None or before.process != member.process or member.node_state in _DURABLE_STATES:
            return False
        return is_complete(text)

    def _rename_to(self, member: Member, text: str) -> bool:
        """Publish ``member`` by the name alone; return False if the file does not have its last name."""
        self._begin_revision(text)
        name = self._next_name()
        self._stale_names.add(name)
        if not self._rename():
            return False
        self._stale_names.remove(name)
        self._published = member
        self._remove_stale_names()
        return True

    def _rename(self) -> bool:
        """Rename the file for the next heartbeat; return False if it does not have its last name."""
        name = self._next_name()
        path = self._directory / name
        with files.as_store_error(path):
            try:
                retry(lambda: os.replace(self._directory / self._name, path))
            except OSError as error:
                if not may_have_succeeded(error):
                    raise
                if not self._is_listed(name):  # else the reply was lost
                    if isinstance(error, FileNotFoundError):
                        return False  # renamed by an earlier attempt, or removed by another process
                    raise
        self._name = name
        return True

    def _is_listed(self, name: str) -> bool:
        """Return True if ``name`` exists. All other names of this node become stale names."""
        texts = [text for text in files.names(self._directory) if text.startswith(f"{self._node}~")]
        self._stale_names.update(text for text in texts if text != name)
        return name in texts

    def _publish(self, member: Member, text: str) -> None:
        self._begin_revision(text)
        if self._name:
            self._stale_names.add(self._name)
        name = self._next_name()
        self._stale_names.add(name)
        durable = member.node_state in _DURABLE_STATES
        files.publish(self._directory / name, files.to_json(encode(member)), durable=durable)
        self._stale_names.remove(name)
        self._published, self._name = member, name
        self._remove_stale_names()

    def _begin_revision(self, text: str) -> None:
        self._revision += 1  # also after a failed attempt, which may have taken effect or still may
        self._published, self._summary = None, text

    def _next_name(self) -> str:
        return lease_name(self._node, self._revision, self._heartbeat, self._summary, self._duration)

    def _remove_stale_names(self) -> None:
        """Remove the files of earlier revisions. Errors are ignored, because the greatest name counts."""
        with suppress(StoreError):
            for name in sorted(self._stale_names):
                files.remove(self._directory / name)
                self._stale_names.remove(name)
        files.touch_directory(self._directory)


@dataclass
class _Content:
    """The content of a node's lease, as it was last read."""

    name: LeaseName | None = None
    member: Member | None = None
    read_failures: int = 0
    """The number of polls in which the content had to be read and could not be."""

    seen: Seen = NOT_SEEN


class LeaseObserver(LivenessObserver[LeaseName]):
    """An observer of the leases of all nodes of a run, by the monotonic ``clock`` of this process (seconds)."""

    def __init__(self, directory: Path, expiry: Expiry, clock: Callable[[], float]) -> None:
        super().__init__(expiry, clock, lambda name: name.duration, LeaseName.follows)
        self._directory = directory
        self._contents: dict[str, _Content] = {}
        self._listed: dict[str, LeaseName] = {}
        """The names of the last listing, by node."""

    def observe(self, expected: Iterable[str], *, complete: bool = False) -> dict[str, Seen]:
        """Return all nodes that have a lease or are ``expected`` to have one; each is alive until proved otherwise.

        A listing may miss leases that are renamed at the same time. To be ``complete``, a second one then follows.
        """
        before = self._clock()
        texts = sorted(files.names(self._directory))  # objects that are used in the order of their creation are fast
        listed = newest(texts, known={name.text: name for name in self._listed.values()})
        if complete and self._listed.keys() - listed.keys():
            listed = newest({*files.names(self._directory)}.difference(texts), found=listed)
        self._listed = listed
        ages = self._liveness.observe(listed, expected, before, self._clock())
        for node in self._liveness.forgotten:
            self._contents.pop(node, None)
        return {node: self._read(node, age) for node, age in ages.items()}

    def lease_versions(self, nodes: Collection[str]) -> dict[str, str]:
        """Return the file names of the leases of some nodes as they are now. They change at each renewal."""
        found = newest(text for text in files.names(self._directory) if text.partition("~")[0] in nodes)
        return {node: name.text for node, name in found.items()}

    def _read(self, node: str, age: LeaseAge[LeaseName]) -> Seen:
        content = self._contents.get(node)
        if content is None:
            content = self._contents[node] = _Content()
        if age.renewed:
            before, content.name = content.name, age.version
            self._update_member(content, before)
        elif content.read_failures:
            self._read_content(content)
        content.seen = age.update(content.seen, content.member)
        return content.seen

    def _update_member(self, content: _Content, last: LeaseName | None) -> None:
        """Update the member of a renewed lease if its revision may differ from that of ``last``."""
        name = content.name
        assert name is not None
        if last is not None and name.revision == last.revision >= 0:
            if content.read_failures:
                self._read_content(content)
            return
        known = None if content.read_failures else content.member
        content.read_failures = 0
        member = same_but_state(name, last, known) if last and known else None
        member, complete = (member, True) if member else member_of(name)
        if complete:
            content.member = member
        else:
            self._read_content(content)

    def _read_content(self, content: _Content) -> None:
        """Update the member from the content of a lease whose name does not hold all of it.

        The member in the name is used only after some failed reads, because a failure without its report is useless.
        """
        name = content.name
        assert name is not None
        member = self._load_content(name)
        content.read_failures = 0 if member else content.read_failures + 1
        if member is None:
            member, _ = member_of(name)
            new = content.member is None and member is not None and member.node_state is not NodeState.FAILED
            if not new and content.read_failures <= _MAX_READ_FAILURES:
                return
        content.member = member or content.member

    def _load_content(self, name: LeaseName) -> Member | None:
        """Read the member from a lease's file, also if it was renamed since the listing; None if it can't be read."""
        with suppress(StoreError):
            # Only listed names are opened: a client caches for half a minute that a name was absent.
            member, file_exists = _member(self._directory, name)
            if file_exists:
                return member
            moved = newest(files.names(self._directory)).get(name.node)
            if moved is not None and moved.revision == name.revision:
                return _member(self._directory, moved)[0]
        return None


def _member(directory: Path, name: LeaseName) -> tuple[Member | None, bool]:
    """Return the member of a lease and whether its file may exist; no member if it can't be read or decoded."""
    try:
        data = files.read_json(directory / name.text)
        if data is None:
            return None, False
        content = decode(Member, data)
    except (DecodeError, StoreError):
        return None, True
    member, complete = member_of(name)
    return (replace(member, process=content.process) if member and complete else content), True


def read_lease(path: Path) -> Lease | None:
    """Return the lease in ``path``; None if there is none or its format is unknown (other program, newer version)."""
    name = parse(path.name)
    if name is None:
        return None
    member, _ = _member(path.parent, name)
    return Lease(name.heartbeat, member, path, name.duration) if member is not None else None


def read_leases(directory: Path, node_name: str = "", *, processes: bool = False) -> dict[str, Lease]:
    """Return all leases in ``directory`` by node; with ``node_name``, only those of the nodes with that name.

    Without ``processes``, a file whose name holds all of the member but its process is not opened: a directory may have
    ten thousand. If the content can't be read, the lease holds the member in its name.
    """
    found: dict[str, Lease] = {}
    moved: dict[str, LeaseName] = {}
    for _ in range(_MAX_READ_FAILURES):
        names = newest(files.names(directory))
        moved = {node: names[node] for node in sorted(names) if node not in found and node_name in ("", name_of(node))}
        for node, name in moved.items():
            member, complete = member_of(name)
            if processes or not complete:
                content, file_exists = _member(directory, name)
                member = content or (member if file_exists else None)
            if member is not None:
                found[node] = Lease(name.heartbeat, member, directory / name.text, name.duration)
        if moved.keys() <= found.keys():  # else a lease was renewed meanwhile, and is read under its next name
            break
    return found
