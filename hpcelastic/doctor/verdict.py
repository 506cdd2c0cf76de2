"""The verdict on a filesystem: whether a run's directory can be safe on it, and how it is used.

Pure. What makes a directory unsafe is what correctness rests on: names that are created exclusively, replacement in
one step, own writes that are read back, listings that show others' names, and that nobody else can change it. Locks,
time stamps, negative entries and attributes may lie: nothing rests on them, so they are worked around. What is merely
late or slow raises times.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from hpcelastic.doctor.measurements import Lag, Measurements, Sight
from hpcelastic.protocol.settings import RENEWALS, Settings
from hpcelastic.store.locks import LockKind
from hpcelastic.store.mounts import UNKNOWN, Mount

NEVER = 30.0
"""What was not seen for this many seconds counts as never seen."""

_PROMPT = 0.25
"""Seconds: a lag that need not come from a cache."""

_TURNS = 4.0
"""A lease is to last this many times longer than a change takes to be seen, and than a renewal may take."""

_RENEWALS_A_SECOND = 100.0
"""Of all nodes together, at most: what else the filesystem's metadata server has to do grows with a cluster as well."""


class Severity(str, Enum):
    """What a finding means for a run; from the best to the worst."""

    FINE = "ok"
    HANDLED = "handled"
    """The filesystem does not do what it seems to; hpcelastic does not rely on it."""

    WARNING = "warning"
    UNSAFE = "unsafe"
    BAD = "bad"
    """A node, not the filesystem, is not fit for a run; the directory may be safe all the same."""


@dataclass(frozen=True)
class Finding:
    """The result of one check, for a person."""

    check: str
    severity: Severity
    result: str
    meaning: str = ""
    remedy: str = ""
    """What hpcelastic does about it, or what the person should do."""


@dataclass(frozen=True)
class Verdict:
    """What the runtime must know of a filesystem; kept as JSON."""

    safe: bool
    mount: Mount = UNKNOWN
    nodes: int = 1
    """How many nodes measured it; with one, nothing is known of what others see."""

    lock: LockKind = LockKind.NATIVE
    lag: float = 0.0
    """Seconds until a change is seen by others in the ways that we look: by listing, and by opening and reading."""

    latency: float = 0.0
    """Seconds that publishing a file takes."""

    look: float = 0.0
    """Seconds that a listing and a read take."""

    findings: tuple[Finding, ...] = ()

    @property
    def reason(self) -> str:
        """Why the filesystem is not safe; empty if it is."""
        wrong = [finding for finding in self.findings if finding.severity is Severity.UNSAFE]
        return "; ".join(f"{finding.check}: {finding.result}; {finding.remedy}" for finding in wrong)


def verdict_on(measurements: Measurements, findings: Sequence[Finding]) -> Verdict:
    """The verdict that follows from ``measurements`` and what the rules have found in them."""
    times = [node.publishing.median for node in measurements.nodes if node.publishing]
    looks = [n.listing.median + n.reading.median for n in measurements.nodes if n.listing and n.reading]
    return Verdict(
        safe=all(finding.severity is not Severity.UNSAFE for finding in findings),
        mount=measurements.nodes[0].mount,
        nodes=len(measurements.nodes),
        lock=lock_kind(measurements),
        lag=round(lag_of(measurements), 3),
        latency=round(max(times, default=0.0), 4),
        look=round(max(looks, default=0.0), 4),
        findings=tuple(findings),
    )


def lock_kind(measurements: Measurements) -> LockKind:
    """The best lock that excludes: native, else a lock file where that was seen to exclude between nodes, else none.

    Correctness rests on none of them; a lock file is the second choice because it outlives a holder that dies.
    """
    nodes, across = measurements.nodes, measurements.across
    usable = not any(node.flock.bad for node in nodes)
    if across is not None and not measurements.one_client:
        usable = usable and not across.flock.bad
    if usable and (_measured(measurements) or not any(locks_stay_local(node.mount) for node in nodes)):
        return LockKind.NATIVE
    soft = all(node.soft_lock.works for node in nodes) and across is not None and across.exclusive_open.works
    return LockKind.SOFT if soft else LockKind.NONE


def _measured(measurements: Measurements) -> bool:
    """True if locks were seen to exclude between nodes, whatever the mount's options let expect."""
    return measurements.across is not None and not measurements.one_client and measurements.across.flock.works


def lag_of(measurements: Measurements) -> float:
    """Seconds after which a change is seen by listing and reading; what was never seen counts as `NEVER`."""
    lags = [expected_lag(node.mount) for node in measurements.nodes]
    if measurements.across is not None:
        lags += [
            _at_most(sight, lag)
            for sight in measurements.across.sights
            for lag in (sight.new_by_listing, sight.content)
        ]
        if measurements.across.round_trip is not None:
            lags.append(measurements.across.round_trip.longest)
    return max(lags, default=0.0)


def _at_most(sight: Sight, lag: Lag | None) -> float:
    """The longest lag that fits what was seen: a cache that showed old content for so long may have been filled as
    early as it was first looked at, and would have shown it longer had the change come at once."""
    if lag is None:
        return 0.0
    if lag.seconds is None:
        return max(NEVER, lag.limit)
    return lag.seconds + (sight.watched if lag.seconds > _PROMPT else 0.0)


def expected_lag(mount: Mount) -> float:
    """Seconds for which a mount with such options may show old content, even if no other node was there to see it."""
    if mount.kind in ("nfs", "nfs4") and mount.option("nocto") is not None:
        return float(mount.option("acregmax") or 60)  # nfs(5): the default
    return 1.0 if mount.kind == "fuse.glusterfs" else 0.0  # performance.md-cache-timeout, attribute-timeout


def locks_stay_local(mount: Mount) -> str:
    """Why the mount's options let native locks exclude on one node only; empty if they do not say so.

    Sources: nfs(5), mount.lustre(8), BeeGFS's beegfs-client.conf, mount.cifs(8), gfs2(5), ocfs2.
    """
    flags = {
        "nfs": ("nolock", "local_lock=all", "local_lock=flock"),
        "nfs4": ("local_lock=all", "local_lock=flock"),
        "lustre": ("localflock", "noflock"),
        "cifs": ("nobrl",),
        "smb3": ("nobrl",),
        "gfs2": ("localflocks",),
        "ocfs2": ("localflocks",),
    }.get(mount.kind, ())
    for flag in flags:
        name, _, value = flag.partition("=")
        if mount.option(name) == value:
            return f"mounted with {flag}"
    if mount.kind == "lustre" and mount.option("flock") is None:
        return "mounted without flock"
    return "BeeGFS without tuneUseGlobalFileLocks" if mount.kind == "beegfs" else ""


def advise(settings: Settings, verdict: Verdict) -> Settings:
    """``settings`` with times that a filesystem as late and slow as this one needs, and as many nodes; none is ever
    lowered.

    A node is called dead when its lease has seemed to stand still for lease + margin seconds. It is renewed three times
    in a lease, and each renewal may be seen ``lag`` late and take ``latency`` to write: only a lag of more than 2/3
    lease + margin could bring a living node under suspicion, and this keeps it four times shorter. The margin covers
    what a reader may take for fresh although it is ``lag`` old. Many nodes renew more seldom, so that all of them
    together ask no more of the filesystem.
    """
    times = settings.rendezvous
    poll = max(times.poll, _rounded_up(verdict.look))
    wanted = _rounded_up(_TURNS * max(verdict.lag, 2 * verdict.latency))
    lease = max(times.lease, wanted, _rounded_up(_crowded(settings)), 4 * poll)
    margin = max(times.margin, _rounded_up(verdict.lag))
    return replace(settings, rendezvous=replace(times, poll=poll, lease=lease, margin=margin))


def _crowded(settings: Settings) -> float:
    """The shortest lease of as many nodes as there may be."""
    return settings.nodes.max * RENEWALS / _RENEWALS_A_SECOND


def raised(before: Settings, after: Settings, verdict: Verdict) -> str:
    """What `advise` has changed and why, in a line; empty if it has changed nothing."""
    old, new = before.rendezvous, after.rendezvous
    names = [name for name in ("lease", "margin", "poll") if getattr(old, name) != getattr(new, name)]
    if not names:
        return ""
    changes = (f"rendezvous.{name} from {getattr(old, name):g} to {getattr(new, name):g} s" for name in names)
    late, slow = in_seconds(verdict.lag), in_seconds(verdict.latency)
    why = f"others' changes are seen up to {late} late here, a file takes {slow} to publish"
    if _crowded(after) > old.lease:
        why += f", and {after.nodes.max} nodes may have to share the filesystem"
    return f"raised {', '.join(changes)}: {why}"


def in_seconds(seconds: float) -> str:
    """A duration for a person."""
    return f"{seconds * 1000:.2g} ms" if seconds < 0.0995 else f"{seconds:.3g} s"


def _rounded_up(seconds: float) -> float:
    """To a tenth of a second, so that the number can be read; what is much shorter is nothing."""
    return math.ceil(seconds * 10) / 10 if seconds >= 0.05 else 0.0
