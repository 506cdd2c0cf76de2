"""A backend over a server that keeps records: texts by key, which can be changed by compare-and-set.

The register is one record, and each lease is another. The server's own time and sessions are not used: the observer
measures the age of a lease, as over files, so the same proof holds.
"""

import contextlib
import heapq
import json
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hpcelastic.backends.state_copies import StateCopies, is_final
from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.protocol.leaders import precedence
from hpcelastic.protocol.liveness import NOT_SEEN, LeaseAge
from hpcelastic.protocol.settings import Expiry
from hpcelastic.protocol.state import Member, NodeState, Seen, name_of
from hpcelastic.storage.leases import Lease
from hpcelastic.storage.observer import LivenessObserver
from hpcelastic.storage.register import Version

_STATE_KEY, _NODES_PREFIX = "state", "nodes/"

ENDED_RUN_TTL = 3600.0
"""Seconds for which the server keeps the records of an ended run. Until then all agents see the end in the server. A
later agent finds the copy in the run's directory, whatever its filesystem caches."""


@dataclass(frozen=True)
class Record:
    """The content of a key."""

    text: str
    token: Any
    """The value that compare_set compares: a token of the server, or the text itself."""


class Records(Protocol):
    """A server's records of one run. Every method may raise StoreError, whether or not it has taken effect.

    Several threads of a process call the methods. Each call must return or raise within seconds.
    """

    def get(self, key: str) -> Record | None:
        """Return the record of ``key``; None if there is none."""

    def compare_set(self, key: str, token: Any, text: str) -> bool:
        """Set ``key`` to ``text`` if its record has ``token``, or if it has no record and ``token`` is None.

        Return False otherwise.
        """

    def set(self, key: str, text: str) -> None:
        """Set ``key`` to ``text``. No other process writes to this key."""

    def all(self, prefix: str) -> dict[str, str]:
        """Return the texts of all keys that begin with ``prefix``, by key."""

    def close(self) -> None:
        """Close the connection. No method is called afterwards."""


@runtime_checkable
class ExpiringRecords(Records, Protocol):
    """Records of a server that can remove records after a time."""

    def expire(self, keys: Mapping[str, Any], seconds: float) -> None:
        """Let the server remove each of ``keys`` after ``seconds``, unless the key is written again.

        ``keys`` maps keys to tokens. A key whose token is not None is only removed if its record still has that token.
        """


@runtime_checkable
class DeletableRecords(Records, Protocol):
    """Records of a server that can delete a record."""

    def delete(self, key: str) -> bool:
        """Delete the record of ``key`` and return True; return False if there is none."""


class KeptRecords(DeletableRecords, Protocol):
    """Records of a server that can remove all records that nobody keeps."""

    def keep(self) -> None:
        """Postpone the removal of all records: it is the time to live from now. It needs no record."""


@dataclass
class _History:
    """The history of the versions in a server that this process has seen. All its registers share it."""

    name: str | None = None
    """The nonce of the first version. A server that has lost the run begins another history. None if it is not known,
    or if an older release has written the first version."""


class RecordsBackend:
    """The rendezvous of one run in ``records``. ``where`` names their server; the state is copied to ``copies``."""

    def __init__(self, where: str, records: Records, copies: StateCopies) -> None:
        self.root = copies.root
        self._where, self._records, self._copies, self._history = where, records, copies, _History()
        self._own_lease_keys: list[str] = []
        """The keys of this process's leases."""

    def register(self, writer: str) -> "RecordRegister":
        return RecordRegister(self._where, self._records, writer, self._copies, self._history)

    def lease(self, node: str) -> "RecordLease":
        self._own_lease_keys.append(f"{_NODES_PREFIX}{node}")
        return RecordLease(self._records, node)

    def observer(self, expiry: Expiry, clock: Callable[[], float]) -> "RecordObserver":
        return RecordObserver(self._records, expiry, clock)

    def leases(self, node_name: str = "", *, processes: bool = False) -> dict[str, Lease]:
        found = {}
        for key, text in self._records.all(_NODES_PREFIX).items():
            node = key.removeprefix(_NODES_PREFIX)
            if node_name in ("", name_of(node)) and (parsed_lease := _parse_lease(text)) is not None:
                found[node] = Lease(*parsed_lease, Path(key), _duration(text))
        return found

    def first_ready(self, count: int) -> tuple[int, list[Member]]:
        members = [lease.member for lease in self.leases().values()]
        ready = (m for m in members if m.node_state is NodeState.READY)
        first = heapq.nsmallest(count, ready, key=lambda m: precedence(m.node, m.order, m.job_nodes, len(members)))
        return len(members), first

    def remove_leases(self, nodes: Collection[str]) -> None:
        if isinstance(self._records, DeletableRecords):
            for key in {f"{_NODES_PREFIX}{node}" for node in nodes}.intersection(self._records.all(_NODES_PREFIX)):
                self._records.delete(key)

    def close(self) -> None:
        if isinstance(self._records, ExpiringRecords) and self._own_lease_keys:
            with contextlib.suppress(StoreError):
                state = self.register("").read().value
                if state is not None and is_final(state):
                    self._records.expire(dict.fromkeys(self._own_lease_keys), ENDED_RUN_TTL)
        self._records.close()


class RecordRegister:
    """A `Register` that keeps only the newest version, in a record."""

    def __init__(self, where: str, records: Records, writer: str, copies: StateCopies, history: _History) -> None:
        self.where = where
        self._records, self._writer, self._copies = records, writer, copies
        self._known = 0
        """The greatest number of a version that this object has returned or committed, or that the caller knows."""

        self._nonce: str | None = None
        """The nonce of that version; None if it is not known."""

        self._history = history
        self._is_lost = False
        """Whether the server was seen to have lost versions. It may have as many again later."""

    def read(self) -> Version:
        """Return the newest version; number 0 if nothing is written yet.

        Raises StoreError if it is older than a version that this object knows.
        """
        return self._newest(self._records.get(_STATE_KEY))

    def commit(self, after: int, value: Any) -> bool:
        """Make ``value`` version ``after`` + 1; return False if that number is taken. Raises as `read` does."""
        found = self._records.get(_STATE_KEY)
        if self._newest(found).number != after:
            return False
        nonce = secrets.token_hex(8)
        history = self._history.name or nonce
        document = {
            "version": after + 1,
            "writer": self._writer,
            "nonce": nonce,
            "history": history,
            "value": value,
        }
        try:
            won = self._records.compare_set(_STATE_KEY, found.token if found else None, json.dumps(document))
        except StoreError:  # the reply may be lost although the record was written
            newest = self._records.get(_STATE_KEY)
            won = newest is not None and json.loads(newest.text).get("nonce") == nonce
            if not won:
                raise
        if won:
            self._known, self._nonce, self._history.name = after + 1, nonce, history
            with contextlib.suppress(StoreError):  # the server decides; the copy is optional
                self._copies.write(document)
                if is_final(value):
                    self._expire(after + 1)
        return won

    def open(self, number: int) -> Version:
        """Return the newest version, which costs no more."""
        return self.read()

    def assume(self, number: int) -> None:
        """Take version ``number``, which the caller knows from elsewhere, as read. `read` returns its value anyway."""
        if number > self._known:
            self._known, self._nonce = number, None

    def _expire(self, number: int) -> None:
        """Let the server remove the run's records after a time, because version ``number`` is final and copied."""
        if not isinstance(self._records, ExpiringRecords):
            return
        record = self._records.get(_STATE_KEY)
        if record is not None and self._parse(record)[0].number == number:  # else the run was resumed
            leases = dict.fromkeys(self._records.all(_NODES_PREFIX))
            self._records.expire({_STATE_KEY: record.token, **leases}, ENDED_RUN_TTL)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Do nothing: the server's compare-and-set needs no lock."""
        yield

    def _newest(self, record: Record | None) -> Version:
        """Return the version in ``record``; StoreError if the server has lost versions that this object knows."""
        version, nonce, history = self._parse(record)
        other = _differ(history, self._history.name) or (version.number == self._known and _differ(nonce, self._nonce))
        self._is_lost = self._is_lost or version.number < self._known or other
        if self._is_lost:
            raise StoreError(
                f"{self.where}: the server has lost the state of this run: it holds version {version.number}, and had "
                f"version {self._known}; use another run id"
            )
        self._known, self._nonce, self._history.name = version.number, nonce, history or self._history.name
        return version

    def _parse(self, record: Record | None) -> tuple[Version, str | None, str | None]:
        """Return the version in ``record``, its nonce and its history; None for what the record does not tell."""
        try:
            document = self._final_copy() if record is None else json.loads(record.text)
            version = Version(int(document["version"]), document["value"])
            return version, document.get("nonce"), document.get("history")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            text = record.text if record else ""
            raise StoreError(f"{self.where}: holds {text!r:.60}, which is not the state of a run") from error

    def _final_copy(self) -> Mapping[str, Any]:
        """Return the copy of a final state, whose record the server has removed; version 0 if there is none."""
        copy = self._copies.read_document()
        return copy if copy is not None and is_final(copy["value"]) else {"version": 0, "value": None}


def _differ(one: str | None, other: str | None) -> bool:
    """Return whether two names differ, if both are known."""
    return one is not None and other is not None and one != other


class RecordLease:
    """An `OwnLease` in a record."""

    def __init__(self, records: Records, node: str) -> None:
        self._records, self._key, self._heartbeat = records, f"{_NODES_PREFIX}{node}", 0

    def renew(self, member: Member, duration: float | None = None) -> None:
        """Publish the next heartbeat. The lease then holds for ``duration`` seconds from the call."""
        self._heartbeat += 1
        document = {"heartbeat": self._heartbeat, "duration": duration, "member": encode(member)}
        self._records.set(self._key, json.dumps(document))


class RecordObserver(LivenessObserver[str]):
    """A `LeaseObserver` of records, by the monotonic ``clock`` of this process (seconds)."""

    def __init__(self, records: Records, expiry: Expiry, clock: Callable[[], float]) -> None:
        super().__init__(expiry, clock, _duration, _follows)
        self._records = records
        self._seen: dict[str, Seen] = {}

    def observe(self, expected: Iterable[str], *, complete: bool = True) -> dict[str, Seen]:
        """Return all nodes that have a lease or are ``expected`` to have one; each is alive until proved otherwise.

        The answer of a server is always ``complete``.
        """
        before = self._clock()
        listed = {key.removeprefix(_NODES_PREFIX): text for key, text in self._records.all(_NODES_PREFIX).items()}
        ages = self._liveness.observe(listed, expected, before, self._clock())
        for node in self._liveness.forgotten:
            self._seen.pop(node, None)
        return {node: self._read(node, age) for node, age in ages.items()}

    def lease_versions(self, nodes: Collection[str]) -> dict[str, str]:
        """Return the texts of the leases of some nodes as they are now. They change at each renewal."""
        found = ((node, self._records.get(f"{_NODES_PREFIX}{node}")) for node in nodes)
        return {node: record.text for node, record in found if record is not None}

    def _read(self, node: str, age: LeaseAge[str]) -> Seen:
        seen = self._seen.get(node, NOT_SEEN)
        member = seen.member
        parsed_lease = _parse_lease(age.version) if age.renewed and age.version is not None else None
        if parsed_lease is not None and parsed_lease[1] != member:
            member = parsed_lease[1]
        self._seen[node] = age.update(seen, member)
        return self._seen[node]


def _duration(text: str) -> float | None:
    """Return the duration of a lease in seconds; None if it is unknown."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return float(json.loads(text)["duration"])
    return None


def _follows(new: str, old: str) -> bool:
    """Return whether the node has renewed its lease after ``old``.

    A server may show an older lease again: it executes a request late that was sent to another one meanwhile.
    """
    after, before = _heartbeat(new), _heartbeat(old)
    return new != old if after is None or before is None else after > before


def _heartbeat(text: str) -> int | None:
    """Return the heartbeat of a lease; None if its format is unknown."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        document = json.loads(text)
        return int(document["heartbeat" if "heartbeat" in document else "beat"])  # the old name
    return None


def _parse_lease(text: str) -> tuple[int, Member] | None:
    """Return the heartbeat and the member in a lease; None if its format is unknown."""
    heartbeat = _heartbeat(text)
    with contextlib.suppress(KeyError, TypeError, DecodeError):
        return None if heartbeat is None else (heartbeat, decode(Member, json.loads(text)["member"]))
    return None
