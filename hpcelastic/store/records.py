"""A backend over a server that keeps records: texts by key, of which one can be changed by compare-and-set.

The protocol's register is one record, each lease another. Nothing of the server's own notion of time or of sessions is
used: a lease is aged by its observer, as over files, so that the same proof holds.
"""

import contextlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.protocol.state import Member, Seen, Stand, name_of
from hpcelastic.store.copies import StateCopies, is_final
from hpcelastic.store.leases import Lease
from hpcelastic.store.locks import LockKind
from hpcelastic.store.register import Version

_STATE, _NODES = "state", "nodes/"

KEPT = 3600.0
"""Seconds for which the server keeps the records of a run that has ended: all agents see its end there, and an agent
that comes later finds the copy in the run's directory, whatever its filesystem has cached."""


@dataclass(frozen=True)
class Record:
    """What a key holds."""

    text: str
    token: Any
    """What compare_set wants to see again; the server's, or the text itself."""


class Records(Protocol):
    """A server's records of one run. Every method may raise StoreError, whether it has taken effect or not.

    They are called from several threads of a process, and must return, if in vain, within seconds.
    """

    def get(self, key: str) -> Record | None:
        """What ``key`` holds; None if nothing."""

    def compare_set(self, key: str, token: Any, text: str) -> bool:
        """Let ``key`` hold ``text`` if it holds what has ``token``, or nothing if that is None; False if not."""

    def set(self, key: str, text: str) -> None:
        """Let ``key`` hold ``text``; nobody else writes there."""

    def all(self, prefix: str) -> dict[str, str]:
        """What all keys hold that begin with ``prefix``, by key."""

    def close(self) -> None:
        """Nothing more will be asked."""


@runtime_checkable
class ExpiringRecords(Records, Protocol):
    """Records of a server that can remove them by itself after a time."""

    def expire(self, keys: Mapping[str, Any], seconds: float) -> None:
        """Let the server remove each of ``keys`` after ``seconds``, unless it is written again.

        A key that is given with a token other than None must still have it, or it stays.
        """


class RecordsBackend:
    """The rendezvous of one run in ``records``, which are kept ``where``; its state is copied to ``copies``."""

    def __init__(self, where: str, records: Records, copies: StateCopies) -> None:
        self._where, self._records, self._copies = where, records, copies
        self._own: list[str] = []
        """The keys of this process's leases."""

    def register(self, writer: str, lock: LockKind = LockKind.NATIVE) -> "RecordRegister":
        return RecordRegister(self._where, self._records, writer, self._copies)

    def lease(self, node: str) -> "RecordLease":
        self._own.append(f"{_NODES}{node}")
        return RecordLease(self._records, node)

    def observer(self, expiry: float, clock: Callable[[], float]) -> "RecordObserver":
        return RecordObserver(self._records, expiry, clock)

    def leases(self, of: str = "") -> dict[str, Lease]:
        found = {}
        for key, text in self._records.all(_NODES).items():
            node = key.removeprefix(_NODES)
            if of in ("", name_of(node)) and (said := _said(text)) is not None:
                found[node] = Lease(*said, Path(key))
        return found

    def glance(self, count: int) -> tuple[int, list[Member]]:
        members = [lease.member for lease in self.leases().values()]
        ready = sorted((m for m in members if m.stand is Stand.READY), key=lambda member: member.order)
        return len(members), ready[:count]

    def close(self) -> None:
        if isinstance(self._records, ExpiringRecords) and self._own:
            with contextlib.suppress(StoreError):
                state = self.register("").read().value
                if state is not None and is_final(state):
                    self._records.expire(dict.fromkeys(self._own), KEPT)
        self._records.close()


class RecordRegister:
    """A `Register` whose newest version is a record; the ones before are gone."""

    def __init__(self, where: str, records: Records, writer: str, copies: StateCopies) -> None:
        self.where = where
        self._records, self._writer, self._copies = records, writer, copies

    def read(self) -> Version:
        """The newest version; number 0 before anything was written."""
        return self._parsed(self._records.get(_STATE))

    def commit(self, after: int, value: Any) -> bool:
        """Make ``value`` version ``after`` + 1; False if that number is taken."""
        found = self._records.get(_STATE)
        if self._parsed(found).number != after:
            return False
        nonce = secrets.token_hex(8)
        document = {"version": after + 1, "writer": self._writer, "nonce": nonce, "value": value}
        try:
            won = self._records.compare_set(_STATE, found.token if found else None, json.dumps(document))
        except StoreError:  # the reply may be lost, and the word written
            newest = self._records.get(_STATE)
            won = newest is not None and json.loads(newest.text).get("nonce") == nonce
            if not won:
                raise
        if won:
            with contextlib.suppress(StoreError):  # the server decides, with or without a copy
                self._copies.write(document)
                if is_final(value):
                    self._expire(after + 1)
        return won

    def _expire(self, number: int) -> None:
        """Let the server remove the run's records in some time, for version ``number`` is final and copied."""
        if not isinstance(self._records, ExpiringRecords):
            return
        record = self._records.get(_STATE)
        if record is not None and self._parsed(record).number == number:  # else the run was resumed
            leases = dict.fromkeys(self._records.all(_NODES))
            self._records.expire({_STATE: record.token, **leases}, KEPT)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """The server excludes."""
        yield

    def _parsed(self, record: Record | None) -> Version:
        if record is None:
            return self._ended()
        try:
            document = json.loads(record.text)
            return Version(int(document["version"]), document["value"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{self.where}: holds {record.text!r:.60}, which is no state of a run") from error

    def _ended(self) -> Version:
        """The copy of a final state where the server has removed the record; else nothing was written."""
        copy = self._copies.read()
        return copy if copy is not None and is_final(copy.value) else Version(0, None)


class RecordLease:
    """An `OwnLease` that is a record."""

    def __init__(self, records: Records, node: str) -> None:
        self._records, self._key, self._beat = records, f"{_NODES}{node}", 0

    def renew(self, member: Member) -> None:
        """Publish the next beat."""
        self._beat += 1
        self._records.set(self._key, json.dumps({"beat": self._beat, "member": encode(member)}))


@dataclass
class _Watched:
    since: float
    """The end of the look that first found the lease as it is; of the first look, where there was none."""

    text: str = ""
    seen: Seen = field(default_factory=lambda: Seen(None, alive=True, proved=False))


class RecordObserver:
    """A `LeaseObserver` of records, on the monotonic ``clock`` of this process (seconds)."""

    def __init__(self, records: Records, expiry: float, clock: Callable[[], float]) -> None:
        self._records, self._expiry, self._clock = records, expiry, clock
        self._watched: dict[str, _Watched] = {}
        self._last = float("-inf")
        """The end of the last look."""

    def observe(self, expected: Iterable[str]) -> dict[str, Seen]:
        """All nodes that have a lease, and those ``expected`` to have one; each alive until proved otherwise."""
        before = self._clock()
        listed = {key.removeprefix(_NODES): text for key, text in self._records.all(_NODES).items()}
        after = self._clock()
        nodes = sorted({*listed, *expected, *self._watched})
        found = {node: self._look(node, listed.get(node, ""), before, after) for node in nodes}
        self._last = after
        return found

    def expires(self, node: str) -> float:
        """When a look that finds the node's lease unmoved proves it dead; infinite if it was never seen."""
        watched = self._watched.get(node)
        return watched.since + self._expiry if watched and watched.text else float("inf")

    def mark(self, node: str) -> str | None:
        """The node's lease as last seen; None if it never was."""
        watched = self._watched.get(node)
        return watched.text if watched and watched.text else None

    def _look(self, node: str, text: str, before: float, after: float) -> Seen:
        watched = self._watched.setdefault(node, _Watched(after))
        seen, member, proved = watched.seen, watched.seen.member, watched.seen.proved
        renewed = bool(text) and text != watched.text
        if renewed:
            proved = before - self._last <= self._expiry
            watched.text, watched.since = text, after
            said = _said(text)
            member = said[1] if said is not None and said[1] != member else member
        expired = before - watched.since > self._expiry
        alive = not expired and (renewed or seen.alive)
        if (alive, proved) != (seen.alive, seen.proved) or member is not seen.member:
            watched.seen = Seen(member, alive=alive, proved=proved)
        return watched.seen


def _said(text: str) -> tuple[int, Member] | None:
    """The beat and the word in a lease; None if it makes no sense to us."""
    try:
        document = json.loads(text)
        return int(document["beat"]), decode(Member, document["member"])
    except (ValueError, KeyError, TypeError, DecodeError):
        return None
