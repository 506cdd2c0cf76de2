"""Liveness: when a lease that does not change proves that its owner is dead.

Pure: listings and the times at which they began and ended are passed in. Every observer of leases uses this rule,
whatever the leases are kept in. All times are on one monotonic clock, in seconds.

- A lease ages from the *end* of the listing that first showed its newest version, and has expired at the *start* of a
  listing that begins more than its duration and the margin later. Its owner measures from the start of the renewal, so
  that the owner's guard always acts first. Each version of a lease has its own duration, which the owner chooses.
- A listing may miss a lease that is renewed at the same time, and a filesystem may show an older version. A lease that
  is missing ages from the first of consecutive such listings, and expires after at least `MIN_MISSING_LISTINGS`.
- A lease that is missing may have been renewed with another duration, so the longest one counts.
- A node that others have taken into a round was alive then, although this observer may have seen its lease expire.
- A lease that is seen for the first time may be the last one of a node that has died. A renewal proves that the owner
  lived if the listing before it is not older than the duration and the margin.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from hpcelastic.protocol.settings import Expiry
from hpcelastic.protocol.state import Member, Seen

V = TypeVar("V")

NOT_SEEN = Seen(None, alive=True, proved=False)
"""The knowledge about a node before the first listing."""

MIN_MISSING_LISTINGS = 5
"""Consecutive listings that must miss a lease before it can expire."""

_FORGOTTEN_AFTER = 3600.0
"""Seconds after its last renewal from which on a dead node without a lease is forgotten. No filesystem shows a removed
name for so long."""


@dataclass
class LeaseAge(Generic[V]):
    """The state of one lease, as the listings show it.

    Each listing updates the object, because a new object for each of ten thousand leases takes too long.
    """

    since: float
    """The end of the listing that first showed ``version``; the end of the first listing if none has shown one."""

    version: V | None = None
    """The newest version that was listed; None if there is none."""

    renewed: bool = False
    """Whether the last listing was the first that showed ``version``."""

    alive: bool = True
    """False once the lease has expired, until it is renewed."""

    proved: bool = False
    """True once a renewal has proved that the owner was alive."""

    duration: float | None = None
    """The duration of ``version`` in seconds; None if it is unknown."""

    missing_since: float = 0.0
    """The end of the first of the latest consecutive listings that did not show ``version``."""

    missing_listings: int = 0
    """The number of these listings."""

    valid_until: float = float("-inf")
    """The last beginning of a listing that changes nothing if it shows ``version``."""

    @property
    def unchanged_since(self) -> float:
        return self.missing_since if self.missing_listings else self.since

    def update(self, seen: Seen, member: Member | None) -> Seen:
        """Return ``seen`` with what is known now and ``member``; the same object if that changes nothing."""
        if member is seen.member and self.alive == seen.alive and self.proved == seen.proved:
            return seen
        return Seen(member, self.alive, self.proved)


class Liveness(Generic[V]):
    """The ages of all leases of a run, as one observer sees them.

    ``duration(version)`` returns the duration of a version in seconds; None if it is unknown. ``follows(new, old)``
    returns whether version ``new`` of a lease is newer than ``old``.
    """

    def __init__(self, expiry: Expiry, duration: Callable[[V], float | None], follows: Callable[[V, V], bool]) -> None:
        self._expiry, self._duration, self._follows = expiry, duration, follows
        self._ages: dict[str, LeaseAge[V]] = {}
        self._nodes: dict[str, None] = {}
        """The nodes of the last listing in their order. To sort them anew takes long if they are many."""

        self.forgotten: list[str] = []
        """The nodes that the last listing has made it forget."""

        self._last_listing_end = float("-inf")
        """The end of the last listing. A lease that was renewed since then proves that its owner lived, unless the last
        listing is so long ago that the owner may have died again."""

    def observe(
        self, listed: Mapping[str, V], expected: Iterable[str], before: float, after: float
    ) -> dict[str, LeaseAge[V]]:
        """Judge all nodes that have a lease or are ``expected`` to have one, by a listing from ``before`` to ``after``.

        ``listed`` has the newest version of each lease in the listing, by node.
        """
        gone = self._ages.keys() - listed.keys()
        self._forget(gone.difference(expected), before)
        nodes = {*listed, *expected, *self._missing(gone)}
        if nodes != self._nodes.keys():
            self._nodes = dict.fromkeys(sorted(nodes))
        found = {node: self._judge(node, listed.get(node), before, after) for node in self._nodes}
        self._last_listing_end = after
        return found

    def admit(self, nodes: Iterable[str], now: float) -> None:
        """Record that ``nodes`` are members of a round that has begun since the last listing.

        The next listing may miss the lease of a node, and an old lease that has expired would then count.
        """
        for node in nodes:
            age = self._ages.get(node)
            if age is not None and not age.alive:
                age.alive, age.since, age.missing_listings = True, now, 0

    def expires(self, node: str) -> float:
        """Return the time from which an unchanged lease proves that the node is dead; infinity if it was never seen."""
        age = self._ages.get(node)
        return age.unchanged_since + self._limit(age) if age and age.version is not None else float("inf")

    def renewed_at(self, node: str) -> float | None:
        """Return the end of the listing that first showed the newest version of the node's lease; None without one."""
        age = self._ages.get(node)
        return age.since if age and age.version is not None else None

    def limit(self) -> float:
        """Return the time in seconds after which the leases of all living nodes have expired if they do not change."""
        durations = [age.duration for age in self._ages.values() if age.alive and age.duration is not None]
        return self._expiry.of(max(durations, default=None))

    def _forget(self, gone: Iterable[str], before: float) -> None:
        """Forget the nodes among ``gone``, which have no lease, that have been dead for long."""
        ages = self._ages
        self.forgotten = [
            node for node in gone if not ages[node].alive and before - ages[node].since > _FORGOTTEN_AFTER
        ]
        for node in self.forgotten:
            del ages[node]

    def _missing(self, gone: Iterable[str]) -> list[str]:
        """Return the living nodes among ``gone``, which have no lease in this listing, that had one before."""
        found = ((node, self._ages.get(node)) for node in gone)
        return [node for node, age in found if age is not None and age.version is not None and age.alive]

    def _judge(self, node: str, version: V | None, before: float, after: float) -> LeaseAge[V]:
        age = self._ages.get(node)
        if age is None:
            age = self._ages[node] = LeaseAge(after)
        elif version == age.version and before <= age.valid_until:
            age.renewed = False
            return age
        if version is not None and (age.version is None or self._follows(version, age.version)):
            age.renewed = age.alive = True
            age.version, age.since, age.missing_listings = version, after, 0
            age.duration = self._duration(version)
            limit = self._expiry.of(age.duration)
            age.proved = before - self._last_listing_end <= limit
            age.valid_until = after + limit
            return age
        age.renewed = False
        if version is not None and version == age.version:
            age.missing_listings = 0
        else:
            age.missing_since = age.missing_since if age.missing_listings else after
            age.missing_listings += 1
        limit = self._limit(age)
        missing_by_chance = 0 < age.missing_listings < MIN_MISSING_LISTINGS
        expired = before - age.unchanged_since > limit and not missing_by_chance
        age.alive = not expired and age.alive
        age.valid_until = age.since + limit if age.alive and not age.missing_listings else float("-inf")
        return age

    def _limit(self, age: LeaseAge[V]) -> float:
        """Return the time in seconds after which the lease has expired if it does not change."""
        return self._expiry.of(None if age.missing_listings else age.duration)
