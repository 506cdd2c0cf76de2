"""Measurements of a filesystem. They hold no conclusions.

Pure: frozen values, which nodes exchange as JSON. Durations are float seconds. No value holds a time of day: each
duration was measured by one clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from hpcelastic.storage.mounts import UNKNOWN, Mount


class Result(str, Enum):
    """The outcome of a trial, from the least to the most important."""

    UNMEASURED = "not measured"
    WORKS = "works"
    HANGS = "hangs"
    FAILS = "fails"


@dataclass(frozen=True)
class Trial:
    """The outcome of one trial, with the details."""

    result: Result = Result.UNMEASURED
    detail: str = ""

    @property
    def works(self) -> bool:
        return self.result is Result.WORKS

    @property
    def bad(self) -> bool:
        """True if the trial was run and failed or hung."""
        return self.result in (Result.FAILS, Result.HANGS)


UNTRIED = Trial()


def worst(trials: Iterable[Trial]) -> Trial:
    """Return the worst of the trials that were run; `UNTRIED` if none was."""
    order = list(Result)
    return max(trials, key=lambda trial: order.index(trial.result), default=UNTRIED)


@dataclass(frozen=True)
class Times:
    """Durations of a repeated operation in seconds."""

    median: float
    longest: float


@dataclass(frozen=True)
class Lag:
    """The delay until a change by another node was seen; ``seconds`` is None if it was not seen within ``limit``."""

    seconds: float | None
    limit: float

    @property
    def at_least(self) -> float:
        return self.limit if self.seconds is None else self.seconds


def latest(lags: Iterable[Lag | None]) -> Lag | None:
    """Return the longest lag; None if there is none."""
    known = [lag for lag in lags if lag is not None]
    return max(known, key=lambda lag: (lag.seconds is None, lag.at_least), default=None)


@dataclass(frozen=True)
class Access:
    """The owner and the permissions of the directory."""

    owner: str
    ours: bool
    """True if the directory belongs to the user that measured."""

    roots: bool
    """True if the directory belongs to root."""

    mode: int

    @property
    def sticky(self) -> bool:
        """True if the sticky bit is set: only the owners of a file and of the directory can rename and remove it."""
        return bool(self.mode & 0o1000)


@dataclass(frozen=True)
class Space:
    """Free space; ``inodes`` is None where the filesystem does not count them. Quotas are not measured."""

    bytes: int
    inodes: int | None


@dataclass(frozen=True)
class NodeMeasurements:
    """Measurements that one node makes without the others."""

    node: str
    client: str = ""
    """Identifies the kernel and the mount. Members with the same client share every cache."""

    mount: Mount = UNKNOWN
    access: Access | None = None
    space: Space | None = None
    read_back: Trial = UNTRIED
    hard_links: Trial = UNTRIED
    symbolic_links: Trial = UNTRIED
    exclusive: Trial = UNTRIED
    replacement: Trial = UNTRIED
    durable_file: Trial = UNTRIED
    durable_directory: Trial = UNTRIED
    publishing: Times | None = None
    """Create, fsync, link, unlink the draft."""

    listing: Times | None = None
    reading: Times | None = None

    @property
    def hangs(self) -> bool:
        """True if an operation hung."""
        vital = (self.read_back, self.hard_links, self.symbolic_links, self.exclusive, self.replacement)
        return any(trial.result is Result.HANGS for trial in (*vital, self.durable_file, self.durable_directory))


@dataclass(frozen=True)
class Visibility:
    """Delays and errors with which one node saw the changes of another node."""

    new_by_listing: Lag | None = None
    new_by_open: Lag | None = None
    """Lag of a new name that was polled by open before it existed."""

    new_by_stat: Lag | None = None
    content: Lag | None = None
    """Lag of a replaced file that is opened and read again by each poll."""

    mtime: Lag | None = None
    gone: Lag | None = None
    """Lag of a removed file, by stat."""

    watched: float = 0.0
    """Seconds for which the files had been polled when the changes came: the maximum age of a cache entry then."""

    backwards: int = 0
    """Number of reads that returned older content than the read before."""

    torn: int = 0
    missing: int = 0
    """Number of reads that found no file, or an error, while the file was replaced."""


@dataclass(frozen=True)
class AcrossMeasurements:
    """Measurements that the nodes make together."""

    exclusive: Trial = UNTRIED
    """Exclusive creation by hard link or symbolic link, as the register uses it."""

    round_trip: Times | None = None
    """Time for a new name from one member and a new name in reply, both found by listing."""

    unlisted: int = 0
    """Number of existing names that were not listed for seconds, until the directory was touched."""

    visibility: tuple[Visibility, ...] = ()
    """One for each member."""


@dataclass(frozen=True)
class Measurements:
    """All measurements of a filesystem: by each node, and between nodes if there was more than one."""

    nodes: tuple[NodeMeasurements, ...]
    across: AcrossMeasurements | None = None

    @property
    def one_client(self) -> bool:
        """True if all nodes used the directory through the same caches."""
        return len({node.client for node in self.nodes}) == 1


@dataclass(frozen=True)
class Contribution:
    """The contribution of one member to `Measurements`."""

    node: NodeMeasurements
    visibility: Visibility = field(default_factory=Visibility)
    round_trip: Times | None = None
    unlisted: int = 0
