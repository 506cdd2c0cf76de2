"""Settings that the rendezvous decides with.

Pure: plain values, no clock, no file. All durations are float seconds.
"""

import math
import re
from dataclasses import dataclass, field, fields

FILE, STATIC = "file", "static"
"""The backend that is files of the run's directory, and the one that needs no endpoint under SLURM."""

EMBEDDED = "embedded"
"""The endpoint that stands for an etcd server that the run's only agent starts."""

PREFIX = "hpcelastic"
"""The default of ``rendezvous.prefix``."""

_FILES = ("cacert", "cert", "key")
"""The settings of a server that ask for TLS."""

_BACKEND = re.compile(r"[a-z0-9][a-z0-9._-]*")

RENEWALS = 3
"""How often a node renews its lease in its life."""


@dataclass(frozen=True)
class NodeRange:
    """How many nodes a round may have: at least ``min``, at most ``max``."""

    min: int = 1
    """A round never forms with fewer nodes than this."""

    max: int = 1
    """A round never forms with more nodes than this; the others stand by."""

    spares: int = 0
    """How many nodes beyond ``max`` to ask for, so that one that is lost is replaced at once."""

    @property
    def wanted(self) -> int:
        """How many nodes to ask for at most."""
        return self.max + self.spares

    def __post_init__(self) -> None:
        if self.min < 1:
            raise ValueError(f"nodes.min is {self.min}; a round needs at least 1 node")
        if self.min > self.max:
            raise ValueError(f"nodes.min is {self.min}, more than nodes.max, {self.max}; write MIN..MAX")
        if self.spares < 0:
            raise ValueError(f"nodes.spares is {self.spares}; it must be 0 or more")


@dataclass(frozen=True)
class RendezvousSettings:
    """How long the rendezvous waits, and for what. Seconds throughout."""

    join_timeout: float = 600.0
    """How long a node waits for a round to form before it gives up."""

    last_call: float = 30.0
    """How long a round with enough nodes waits for more, where it is unknown whether more can come."""

    lease: float = 10.0
    """A node that could not renew its lease for this long kills its own workers."""

    margin: float = 2.0
    """Others call a node dead ``margin`` seconds after its lease ran out, so that its workers are gone by then."""

    poll: float = 0.5
    """How often an agent looks at the shared directory."""

    checkpoint_grace: float = 120.0
    """How long workers that ask ``should_stop()`` may take to a step's end and a checkpoint, where a round ends for a
    newcomer, a drain or a change of size."""

    backend: str = FILE
    """What the rendezvous is kept in: ``file``, the run's directory, which needs no server; ``c10d``, a store of torch
    that one agent serves; ``static``, the same with the ranks that SLURM gives; ``etcd`` or ``etcd-v2``, an etcd
    server; or what another package adds."""

    endpoint: str = ""
    """Where that is: HOST:PORT of a server, ``file:PATH`` of torch's FileStore, ``embedded`` for an etcd server that
    the agent of a run on one node starts; nothing with ``file``, nor with ``static`` under SLURM."""

    prefix: str = PREFIX
    """What the names of an etcd server's keys begin with; the run's name follows."""

    cacert: str = ""
    """Path of the certificates of the authorities that may vouch for an etcd server; those of the system where not
    given. With it the server is asked by TLS, as with ``https://`` in the endpoint."""

    cert: str = ""
    """Path of the certificate that an etcd server asks its clients for."""

    key: str = ""
    """Path of the key of ``cert``, where that does not hold it; not encrypted."""

    @property
    def tls(self) -> tuple[str, ...]:
        """The names of those settings that ask for TLS."""
        return tuple(name for name in _FILES if getattr(self, name))

    @property
    def found(self) -> bool:
        """Whether the server's address is found out while the run starts, because the user does not name it."""
        return self.endpoint == EMBEDDED or (self.backend == STATIC and not self.endpoint)

    def __post_init__(self) -> None:
        if not _BACKEND.fullmatch(self.backend):
            raise ValueError(f"rendezvous.backend is {self.backend!r}; write file, c10d, static, etcd or etcd-v2")
        if self.backend == FILE and self.endpoint:
            raise ValueError(
                f"rendezvous.endpoint is {self.endpoint!r}, and the backend is file, which needs none; leave it out, "
                "or name another rendezvous.backend"
            )
        if self.backend not in (FILE, STATIC) and not self.endpoint:
            raise ValueError(f"rendezvous.backend is {self.backend}; rendezvous.endpoint must name its HOST:PORT")
        self._check_tls()
        for name in ("join_timeout", "last_call", "lease", "margin", "poll", "checkpoint_grace"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"rendezvous.{name} is {getattr(self, name)}; write a number of seconds")
        for name in ("join_timeout", "lease", "margin", "poll"):
            if getattr(self, name) <= 0:
                raise ValueError(f"rendezvous.{name} is {getattr(self, name)}; it must be more than 0 seconds")
        for name in ("last_call", "checkpoint_grace"):
            if getattr(self, name) < 0:
                raise ValueError(f"rendezvous.{name} is {getattr(self, name)}; it must be 0 seconds or more")
        if self.poll > self.lease / 4:
            raise ValueError(
                f"rendezvous.poll is {self.poll} s; at most a quarter of rendezvous.lease ({self.lease} s) "
                "keeps a living node from being called dead"
            )

    def _check_tls(self) -> None:
        given = [*self.tls, *(["prefix"] if self.prefix != PREFIX else [])]
        if self.backend == FILE and given:
            raise ValueError(f"rendezvous.{given[0]} is of a server, and the backend is file, which needs none")
        for name in self.tls:
            path = getattr(self, name)
            if not path.startswith("/"):
                raise ValueError(f"rendezvous.{name} is {path!r}; write its full path, which is the same on all nodes")
        if self.key and not self.cert:
            raise ValueError("rendezvous.key is the key of a certificate; rendezvous.cert must name that")
        if self.tls and self.endpoint == EMBEDDED:
            raise ValueError(f"rendezvous.{self.tls[0]} asks for TLS, which an embedded server has not; leave it out")
        if "http://" in self.endpoint and (self.tls or "https://" in self.endpoint):
            why = f"rendezvous.{self.tls[0]} asks" if self.tls else "a part of it asks"
            raise ValueError(f"rendezvous.endpoint is {self.endpoint!r}, and {why} for TLS; write https:// throughout")


TIMINGS = tuple(one.name for one in fields(RendezvousSettings) if one.type is float)
"""The settings of the rendezvous that are seconds."""


@dataclass(frozen=True)
class RestartSettings:
    """How many failures a run survives."""

    max: int = 3
    """Rounds that may end by a worker's failure, in the whole run; lost or leaving nodes spend nothing."""

    def __post_init__(self) -> None:
        if self.max < 0:
            raise ValueError(f"restarts.max is {self.max}; it must be 0 or more")


@dataclass(frozen=True)
class Settings:
    """All that the protocol decides with; every agent of a run must use the same."""

    nodes: NodeRange = field(default_factory=NodeRange)
    rendezvous: RendezvousSettings = field(default_factory=RendezvousSettings)
    restarts: RestartSettings = field(default_factory=RestartSettings)
