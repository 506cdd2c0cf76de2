"""The settings on which the decisions of the rendezvous depend.

Pure: plain values, no clock, no file. All durations are float seconds.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Final, Literal

FILE, STATIC = "file", "static"
"""The backend that uses files in the run's directory, and the one that needs no endpoint under SLURM."""

EMBEDDED = "embedded"
"""The endpoint of an etcd server that the only agent of the run starts itself."""

PREFIX = "hpcelastic"
"""The default of ``rendezvous.prefix``."""

_TLS_FILES = ("cacert", "cert", "key")
"""The settings that enable TLS."""

_BACKEND = re.compile(r"[a-z0-9][a-z0-9._-]*")

RENEWALS = 3
"""Number of renewals of a lease within its duration."""

AUTO: Final = "auto"
"""The value of ``rendezvous.lease`` with which each node chooses the duration of its lease."""

_FIRST_LEASE, _LONGEST_LEASE = 10.0, 60.0
"""The duration with which each node begins then, and the longest that it chooses, in seconds."""


@dataclass(frozen=True)
class NodeRange:
    """The number of nodes of a round: at least ``min``, at most ``max``."""

    min: int = 1
    """Minimum number of nodes of a round."""

    max: int = 1
    """Maximum number of nodes of a round. Further nodes stand by."""

    spares: int = 0
    """Number of nodes to request in addition to ``max``, so that a lost node is replaced at once."""

    multiple: int = 1
    """The number of nodes of a round is a multiple of this number, for groups of nodes that must stay whole, as hybrid
    sharding and tensor parallelism have them. Nodes that make no whole group stand by."""

    within: Literal["switch", "block"] | None = None
    """Each group of ``multiple`` nodes is under one switch, the lowest above the nodes, or in one block of SLURM's
    topology."""

    @property
    def wanted(self) -> int:
        """The maximum number of nodes to request."""
        return self.max + self.spares

    def whole(self, count: int) -> int:
        """Return the greatest number of nodes up to ``count`` that makes whole groups."""
        return count - count % self.multiple

    def most_of(self, places: Iterable[str]) -> int:
        """Return how many of the nodes at these places, the topology above each node, make whole groups."""
        together = list(places)
        return sum(map(self.whole, Counter(together).values())) if self.within else self.whole(len(together))

    def not_whole(self, count: int) -> str:
        """Describe why a round cannot have ``count`` nodes, and what to write instead."""
        down = self.whole(count)
        choice = f"{down} or {down + self.multiple}" if down else f"{self.multiple}"
        return f"not a multiple of nodes.multiple, {self.multiple}; write {choice}"

    def __post_init__(self) -> None:
        if self.min < 1:
            raise ValueError(f"nodes.min is {self.min}; a round needs at least 1 node")
        if self.min > self.max:
            raise ValueError(f"nodes.min is {self.min}, more than nodes.max, {self.max}; write MIN..MAX")
        if self.spares < 0:
            raise ValueError(f"nodes.spares is {self.spares}; it must be 0 or more")
        if self.multiple < 1:
            raise ValueError(f"nodes.multiple is {self.multiple}; it must be 1 or more")
        if self.within and self.multiple == 1:
            raise ValueError(
                f"nodes.within is {self.within}, but nodes.multiple is 1; set nodes.multiple to the number of nodes of "
                f"a group that must be in one {self.within}"
            )
        for name in ("min", "max"):
            count = getattr(self, name)
            if count % self.multiple:
                raise ValueError(f"nodes.{name} is {count}, {self.not_whole(count)}")


@dataclass(frozen=True)
class Expiry:
    """The time after which a lease that is not renewed proves that its owner is dead."""

    longest: float
    """The longest duration of a lease, in seconds."""

    margin: float
    """Seconds that are added to the duration."""

    def of(self, duration: float | None) -> float:
        """Return the time for a lease of ``duration`` seconds; None for an unknown duration."""
        return (self.longest if duration is None else duration) + self.margin


@dataclass(frozen=True)
class RendezvousSettings:
    """The backend of the rendezvous, and its time-outs, in seconds."""

    join_timeout: float = 600.0
    """Time for which a node waits for a round to form before it gives up."""

    last_call: float = 30.0
    """Maximum time for which a round with enough nodes waits for more nodes. The wait ends earlier when no more nodes
    are expected. If their number is unknown, only the first round waits for nodes that have not joined the run."""

    lease: float | Literal["auto"] = AUTO
    """Duration of a lease. A node that cannot renew its lease for this long kills its own workers. With ``auto`` each
    node chooses it from what it measures: it begins with 10 s, and takes ``min_lease`` if the filesystem is fast. If
    renewals are late, it takes a longer lease, up to 60 s."""

    min_lease: float = 2.0
    """Shortest duration that ``auto`` chooses, in seconds. It is raised for more than 64 nodes, and on a filesystem
    that is slow."""

    margin: float = 1.0
    """Time from the expiry of a lease until other nodes declare the node dead. Its workers are dead by then."""

    poll: float = 0.5
    """Shortest interval at which an agent polls the shared directory. While a round runs undisturbed, it polls less
    often."""

    checkpoint_grace: float = 120.0
    """Time in which workers that call ``should_stop()`` have to finish a step and save a checkpoint when a round ends
    because of a newcomer, a drain or a change of size."""

    backend: str = FILE
    """Storage of the rendezvous: ``file``, the run's directory, which needs no server; ``c10d``, a torch store that one
    agent serves; ``static``, the same at a fixed address; ``etcd`` or ``etcd-v2``, an etcd server; or a backend of
    another package."""

    endpoint: str = ""
    """Address of the backend: HOST:PORT of a server, ``file:PATH`` of torch's FileStore, or ``embedded`` for an etcd
    server that the agent of a run on one node starts. Empty with ``file``, and with ``static`` under SLURM."""

    prefix: str = PREFIX
    """Prefix of the keys in an etcd server. The run's name follows it."""

    cacert: str = ""
    """Path of the CA certificates for an etcd server. Default: those of the system. Setting it enables TLS, as does
    ``https://`` in the endpoint."""

    cert: str = ""
    """Path of the client certificate for an etcd server."""

    key: str = ""
    """Path of the unencrypted key of ``cert``, if that file does not contain it."""

    @property
    def shortest_lease(self) -> float:
        """The shortest duration of a lease, in seconds."""
        return max(self.min_lease, 4 * self.poll) if isinstance(self.lease, str) else self.lease

    @property
    def first_lease(self) -> float:
        """The duration with which a node begins, in seconds."""
        return max(_FIRST_LEASE, self.shortest_lease) if isinstance(self.lease, str) else self.lease

    @property
    def longest_lease(self) -> float:
        """The longest duration of a lease, in seconds."""
        return max(_LONGEST_LEASE, self.shortest_lease) if isinstance(self.lease, str) else self.lease

    @property
    def expiry(self) -> Expiry:
        """When a lease that is not renewed proves that its owner is dead."""
        return Expiry(self.longest_lease, self.margin)

    @property
    def tls(self) -> tuple[str, ...]:
        """The names of the given settings that enable TLS."""
        return tuple(name for name in _TLS_FILES if getattr(self, name))

    @property
    def discovers_endpoint(self) -> bool:
        """True if the server's address is discovered when the run starts, because the user does not name it."""
        return self.endpoint == EMBEDDED or (self.backend == STATIC and not self.endpoint)

    def __post_init__(self) -> None:
        if not _BACKEND.fullmatch(self.backend):
            raise ValueError(f"rendezvous.backend is {self.backend!r}; write file, c10d, static, etcd or etcd-v2")
        if self.backend == FILE and self.endpoint:
            raise ValueError(
                f"rendezvous.endpoint is {self.endpoint!r}, but the backend file needs no endpoint; remove it, "
                "or set another rendezvous.backend"
            )
        if self.backend not in (FILE, STATIC) and not self.endpoint:
            raise ValueError(f"rendezvous.backend is {self.backend}; set rendezvous.endpoint to its HOST:PORT")
        self._check_tls()
        if isinstance(self.lease, str) and self.lease != AUTO:
            raise ValueError(f"rendezvous.lease is {self.lease!r}; write a number of seconds, or auto")
        for name in TIMINGS:
            if getattr(self, name) != AUTO and not math.isfinite(getattr(self, name)):
                raise ValueError(f"rendezvous.{name} is {getattr(self, name)}; write a number of seconds")
        for name in ("join_timeout", "lease", "min_lease", "margin", "poll"):
            if getattr(self, name) != AUTO and getattr(self, name) <= 0:
                raise ValueError(f"rendezvous.{name} is {getattr(self, name)}; it must be more than 0 seconds")
        for name in ("last_call", "checkpoint_grace"):
            if getattr(self, name) < 0:
                raise ValueError(f"rendezvous.{name} is {getattr(self, name)}; it must be 0 seconds or more")
        if self.poll > self.shortest_lease / 4:
            raise ValueError(
                f"rendezvous.poll is {self.poll} s; it must be at most a quarter of rendezvous.lease "
                f"({self.lease} s), so that no live node is declared dead"
            )

    def _check_tls(self) -> None:
        given = [*self.tls, *(["prefix"] if self.prefix != PREFIX else [])]
        if self.backend == FILE and given:
            raise ValueError(
                f"rendezvous.{given[0]} is a setting of a server, but the backend file needs no server; remove it"
            )
        for name in self.tls:
            path = getattr(self, name)
            if not path.startswith("/"):
                raise ValueError(f"rendezvous.{name} is {path!r}; write a full path that is the same on all nodes")
        if self.key and not self.cert:
            raise ValueError("rendezvous.key is the key of a certificate; set rendezvous.cert to the certificate")
        if self.tls and self.endpoint == EMBEDDED:
            raise ValueError(
                f"rendezvous.{self.tls[0]} requires TLS, which an embedded server does not support; remove it"
            )
        if "http://" in self.endpoint and (self.tls or "https://" in self.endpoint):
            reason = f"rendezvous.{self.tls[0]} requires" if self.tls else "another member of it requires"
            raise ValueError(
                f"rendezvous.endpoint is {self.endpoint!r}, but {reason} TLS; write https:// for every member"
            )


TIMINGS = tuple(one.name for one in fields(RendezvousSettings) if one.type is float or one.name == "lease")
"""The names of the rendezvous settings that are durations, in seconds. The duration of a lease may be ``auto``."""


@dataclass(frozen=True)
class RestartSettings:
    """The restart budget of a run."""

    max: int = 3
    """Number of rounds of a run that may end by a worker's failure: the restart budget. Lost and leaving nodes do not
    count."""

    refill_interval: float = 86400.0
    """Seconds after which one restart is refilled, up to ``max``; 0 to refill none. So a long run does not end by
    failures that are rare."""

    refill_steps: int = 1000
    """Number of saved steps after the last failure for which one restart is refilled, up to ``max``; 0 to refill
    none."""

    identical: int = 2
    """How often in a row the same error may occur at the same place in the same step until the run ends, because a
    restart cannot help; 0 for any number."""

    def __post_init__(self) -> None:
        if self.max < 0:
            raise ValueError(f"restarts.max is {self.max}; it must be 0 or more")
        if not (math.isfinite(self.refill_interval) and self.refill_interval >= 0):
            raise ValueError(f"restarts.refill_interval is {self.refill_interval}; it must be 0 seconds or more")
        if self.refill_steps < 0:
            raise ValueError(f"restarts.refill_steps is {self.refill_steps}; it must be 0 or more")
        if self.identical < 0 or self.identical == 1:
            raise ValueError(f"restarts.identical is {self.identical}; it must be 2 or more, or 0 for any number")


@dataclass(frozen=True)
class Settings:
    """All settings on which decisions depend. Every agent of a run must use the same settings."""

    nodes: NodeRange = field(default_factory=NodeRange)
    rendezvous: RendezvousSettings = field(default_factory=RendezvousSettings)
    restarts: RestartSettings = field(default_factory=RestartSettings)
