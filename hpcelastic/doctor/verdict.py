"""The verdict on a filesystem: whether a run's directory can be safe on it, and how runs use it.

Pure. A directory is unsafe if the filesystem breaks what correctness depends on: exclusive creation of names, atomic
replacement, reading back of own writes, listings that show the names of other nodes, and protection from changes by
other users. Runs do not depend on locks, time stamps, cached absence of names, or attributes, so errors of these are
worked around. If changes are only late or slow, timings are raised.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from hpcelastic.doctor.measurements import Lag, Measurements, Visibility
from hpcelastic.protocol.codec import renamed
from hpcelastic.protocol.settings import AUTO, Settings
from hpcelastic.storage.mounts import UNKNOWN, Mount

NEVER = 30.0
"""Seconds after which a change that was not seen counts as never seen."""

_PROMPT_LAG = 0.25
"""Seconds. A lag up to this is not necessarily caused by a cache."""

_LEASE_FACTOR = 4.0
"""Least ratio of the lease to the lag, and to twice the latency of a renewal."""

_LEASE_GROWTH = 0.25
"""Seconds of the shortest lease for the square root of the number of nodes."""


class Severity(str, Enum):
    """The meaning of a finding for a run, from the best to the worst."""

    OK = "ok"
    HANDLED = "handled"
    """The filesystem does not behave as it appears to. hpcelastic does not depend on it."""

    WARNING = "warning"
    UNSAFE = "unsafe"
    BAD = "bad"
    """A run would fail on a node. The directory may be safe nevertheless."""


@dataclass(frozen=True)
class Conclusion:
    """The result of one check, as text for the administrator."""

    check: str
    severity: Severity
    result: str
    meaning: str = ""
    remedy: str = ""
    """The measure that hpcelastic takes, or that the administrator should take."""


@dataclass(frozen=True)
class FilesystemReport:
    """The verdict on a filesystem, as the runtime uses it. It is stored as JSON."""

    safe: bool
    mount: Mount = UNKNOWN
    nodes: int = 1
    """Number of nodes that measured. With one, it is unknown what other nodes see."""

    lag: float = 0.0
    """Seconds until other nodes see a change by the means that runs use: listing, and opening and reading."""

    latency: float = 0.0
    """Seconds to publish a file."""

    poll_duration: float = field(default=0.0, metadata=renamed("look"))
    """Seconds for one poll: a listing and a read."""

    findings: tuple[Conclusion, ...] = ()

    @property
    def reason(self) -> str:
        """Reason why the filesystem is not safe; empty if it is."""
        wrong = [finding for finding in self.findings if finding.severity is Severity.UNSAFE]
        return "; ".join(f"{finding.check}: {finding.result}; {finding.remedy}" for finding in wrong)


def build_report(measurements: Measurements, findings: Sequence[Conclusion]) -> FilesystemReport:
    """Return the verdict that follows from ``measurements`` and the ``findings`` of the rules."""
    latencies = [node.publishing.median for node in measurements.nodes if node.publishing]
    polls = [n.listing.median + n.reading.median for n in measurements.nodes if n.listing and n.reading]
    return FilesystemReport(
        safe=all(finding.severity is not Severity.UNSAFE for finding in findings),
        mount=measurements.nodes[0].mount,
        nodes=len(measurements.nodes),
        lag=round(measured_lag(measurements), 3),
        latency=round(max(latencies, default=0.0), 4),
        poll_duration=round(max(polls, default=0.0), 4),
        findings=tuple(findings),
    )


def measured_lag(measurements: Measurements) -> float:
    """Return the seconds until a change is seen by listing and reading; at least `NEVER` if it was never seen."""
    lags = [expected_lag(node.mount) for node in measurements.nodes]
    if measurements.across is not None:
        lags += [
            _longest_possible(visibility, lag)
            for visibility in measurements.across.visibility
            for lag in (visibility.new_by_listing, visibility.content)
        ]
        if measurements.across.round_trip is not None:
            lags.append(measurements.across.round_trip.longest)
    return max(lags, default=0.0)


def _longest_possible(visibility: Visibility, lag: Lag | None) -> float:
    """Return the longest lag that is consistent with the measured one.

    A cache that showed old content may have been filled as early as the first poll. If the change had come just after
    that poll, the cache would have shown the old content for that much longer.
    """
    if lag is None:
        return 0.0
    if lag.seconds is None:
        return max(NEVER, lag.limit)
    return lag.seconds + (visibility.watched if lag.seconds > _PROMPT_LAG else 0.0)


def expected_lag(mount: Mount) -> float:
    """Return the seconds for which a mount with these options may show old content, known without a second node."""
    if mount.kind in ("nfs", "nfs4") and mount.option("nocto") is not None:
        return float(mount.option("acregmax") or 60)  # nfs(5): the default
    return 1.0 if mount.kind == "fuse.glusterfs" else 0.0  # performance.md-cache-timeout, attribute-timeout


def advise(settings: Settings, verdict: FilesystemReport) -> Settings:
    """Return ``settings`` with the timings that this filesystem and the number of nodes need. None is ever lowered.

    A node is declared dead when its lease has not changed for lease + margin seconds. It is renewed three times in a
    lease, and each renewal may be seen ``lag`` late and take ``latency`` to write: only a lag of more than 2/3
    lease + margin could make a living node appear dead, and these settings keep the lag at most a quarter of the lease.
    The margin covers two changes, of a lease and of the register, that a reader sees ``lag`` late each. Many nodes
    renew less often, so that the load on the filesystem grows only with the square root of their number. If nodes
    choose the duration of their leases, their shortest one is raised.
    """
    times = settings.rendezvous
    poll = max(times.poll, _round_up(verdict.poll_duration))
    wanted = _round_up(_LEASE_FACTOR * max(verdict.lag, 2 * verdict.latency))
    lease = max(times.shortest_lease, wanted, _round_up(_shortest_lease(settings)), 4 * poll)
    margin = max(times.margin, _round_up(2 * verdict.lag))
    name = "min_lease" if times.lease == AUTO else "lease"
    raised = {name: lease} if lease > times.shortest_lease else {}
    return replace(settings, rendezvous=replace(times, poll=poll, margin=margin, **raised))  # type: ignore[arg-type]


def _shortest_lease(settings: Settings) -> float:
    """Return the shortest lease in seconds for the maximum number of nodes."""
    return _LEASE_GROWTH * math.sqrt(settings.nodes.max)


def describe_changes(before: Settings, after: Settings, verdict: FilesystemReport) -> str:
    """Describe in one line what `advise` has changed and why; empty if it has changed nothing."""
    old, new = before.rendezvous, after.rendezvous
    names = [name for name in ("lease", "min_lease", "margin", "poll") if getattr(old, name) != getattr(new, name)]
    if not names:
        return ""
    changes = (f"rendezvous.{name} from {getattr(old, name):g} to {getattr(new, name):g} s" for name in names)
    lag, latency = format_seconds(verdict.lag), format_seconds(verdict.latency)
    reason = f"changes by other nodes are visible up to {lag} late, and it takes {latency} to publish a file"
    if _shortest_lease(after) > old.shortest_lease:
        reason += f", and up to {after.nodes.max} nodes share the filesystem"
    return f"raised {', '.join(changes)}: {reason}"


def format_seconds(seconds: float) -> str:
    """Format a duration for the report."""
    return f"{seconds * 1000:.2g} ms" if seconds < 0.0995 else f"{seconds:.3g} s"


def _round_up(seconds: float) -> float:
    """Round up to a tenth of a second, for a readable number; less than 0.05 s counts as nothing."""
    return math.ceil(seconds * 10) / 10 if seconds >= 0.05 else 0.0
