"""What was measured of a filesystem, before anything is concluded from it.

Pure: frozen values, which nodes exchange as JSON. Durations are float seconds. No value holds a time of day: each
duration was measured by one clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from hpcelastic.store.mounts import UNKNOWN, Mount


class Result(str, Enum):
    """What became of a check; the later, the more it counts."""

    UNMEASURED = "not measured"
    WORKS = "works"
    HANGS = "hangs"
    FAILS = "fails"


@dataclass(frozen=True)
class Trial:
    """One thing that was tried."""

    result: Result = Result.UNMEASURED
    detail: str = ""

    @property
    def works(self) -> bool:
        return self.result is Result.WORKS

    @property
    def bad(self) -> bool:
        """True if it was tried and did not work."""
        return self.result in (Result.FAILS, Result.HANGS)


UNTRIED = Trial()


def worst(trials: Iterable[Trial]) -> Trial:
    """The worst of several, of those that were measured; `UNTRIED` where none was."""
    order = list(Result)
    return max(trials, key=lambda trial: order.index(trial.result), default=UNTRIED)


@dataclass(frozen=True)
class Times:
    """How long an operation took, over some repetitions, in seconds."""

    median: float
    longest: float


@dataclass(frozen=True)
class Lag:
    """How late another node's change was seen; ``seconds`` is None if it was not seen within ``limit``."""

    seconds: float | None
    limit: float

    @property
    def at_least(self) -> float:
        return self.limit if self.seconds is None else self.seconds


def latest(lags: Iterable[Lag | None]) -> Lag | None:
    """The longest of several; None where there is none."""
    known = [lag for lag in lags if lag is not None]
    return max(known, key=lambda lag: (lag.seconds is None, lag.at_least), default=None)


@dataclass(frozen=True)
class Access:
    """Who may change the names in the directory."""

    owner: str
    ours: bool
    """True if it belongs to who measured."""

    roots: bool
    mode: int

    @property
    def sticky(self) -> bool:
        """True if nobody may rename or remove what belongs to another; those two bits are all that matters here."""
        return bool(self.mode & 0o1000)


@dataclass(frozen=True)
class Space:
    """What is free for us; ``inodes`` is None where the filesystem does not count them. Quotas are not measured."""

    bytes: int
    inodes: int | None


@dataclass(frozen=True)
class NodeMeasurements:
    """What one node found without any other's help."""

    node: str
    client: str = ""
    """Names the kernel and the mount: members with the same one share every cache."""

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
    flock: Trial = UNTRIED
    posix_lock: Trial = UNTRIED
    soft_lock: Trial = UNTRIED
    publishing: Times | None = None
    """Create, fsync, link, unlink the draft."""

    listing: Times | None = None
    reading: Times | None = None

    @property
    def hangs(self) -> bool:
        """True if something else than a lock was waited for in vain."""
        vital = (self.read_back, self.hard_links, self.symbolic_links, self.exclusive, self.replacement)
        return any(trial.result is Result.HANGS for trial in (*vital, self.durable_file, self.durable_directory))


@dataclass(frozen=True)
class Sight:
    """What one node saw of the changes that another made."""

    new_by_listing: Lag | None = None
    new_by_open: Lag | None = None
    """Of a name that was polled while it was absent."""

    new_by_stat: Lag | None = None
    content: Lag | None = None
    """Of a replaced file, opened and read anew each time."""

    mtime: Lag | None = None
    gone: Lag | None = None
    """Of a removed file, by stat."""

    watched: float = 0.0
    """Seconds for which all of it had been watched when the changes came: as old could be what was remembered."""

    backwards: int = 0
    """Reads that gave older content than the read before."""

    torn: int = 0
    missing: int = 0
    """Reads that found nothing, or an error, while the file was replaced."""


@dataclass(frozen=True)
class AcrossMeasurements:
    """What the nodes found together."""

    exclusive: Trial = UNTRIED
    """By hard link, or symbolic link, as the register uses them."""

    exclusive_open: Trial = UNTRIED
    """By O_EXCL, as soft locks use it."""

    flock: Trial = UNTRIED
    posix_lock: Trial = UNTRIED
    handover: Lag | None = None
    """From when a waiter heard that the flock was released until it had it."""

    round_trip: Times | None = None
    """A new name there, a new name back, both found by listing."""

    unlisted: int = 0
    """How often a name that was there was not listed for seconds, until the directory was touched."""

    sights: tuple[Sight, ...] = ()


@dataclass(frozen=True)
class Measurements:
    """All that is known of a filesystem: by each node, and across nodes if there was more than one."""

    nodes: tuple[NodeMeasurements, ...]
    across: AcrossMeasurements | None = None

    @property
    def one_client(self) -> bool:
        """True if all nodes saw the directory through the same caches."""
        return len({node.client for node in self.nodes}) == 1


@dataclass(frozen=True)
class Share:
    """What one node contributes to `Measurements`."""

    node: NodeMeasurements
    sight: Sight = field(default_factory=Sight)
    handover: Lag | None = None
    round_trip: Times | None = None
    unlisted: int = 0
