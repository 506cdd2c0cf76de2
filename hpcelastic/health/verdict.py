"""Verdicts on nodes by their incidents: which nodes to exclude.

Pure. Each incident has a weight, which halves in each half-life. A node whose weights add up to `LIMIT` is excluded. A
failed check or a hardware error excludes a node at once, for one half-life. An incident that may have another cause,
such as a loss of power, excludes a node only if it happens repeatedly.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpcelastic.health.incidents import Incident, IncidentKind

LIMIT = 1.0

WEIGHTS = {
    IncidentKind.CHECK: 2.0,
    IncidentKind.HARDWARE: 2.0,
    IncidentKind.SUSPECT: 0.7,
    IncidentKind.LOST: 0.4,
    IncidentKind.FENCED: 0.2,
}


@dataclass(frozen=True)
class NodeVerdict:
    """The verdict on a node."""

    score: float
    """Sum of the current weights of its incidents."""

    out: bool
    """True if the node is excluded; invariant: then ``score`` is at least `LIMIT`."""

    back_in: float
    """Seconds until it is no longer excluded, without further incidents; 0 if it is not excluded."""

    reasons: tuple[str, ...]
    """Descriptions of its incidents, the newest first."""


def verdicts(incidents: Iterable[Incident], now: float, half_life: float) -> Mapping[str, NodeVerdict]:
    """Return the verdict on each node with incidents; ``now`` in seconds since the epoch, ``half_life`` in seconds."""
    by_host: dict[str, list[Incident]] = {}
    for incident in incidents:
        by_host.setdefault(incident.host, []).append(incident)
    return {host: _verdict(by_host[host], now, half_life) for host in sorted(by_host)}


def nodes_out(judged: Mapping[str, NodeVerdict]) -> tuple[str, ...]:
    """Return the nodes that are excluded."""
    return tuple(host for host, verdict in judged.items() if verdict.out)


def _verdict(incidents: list[Incident], now: float, half_life: float) -> NodeVerdict:
    # The clock of the node that recorded an incident may be ahead, so an age is never negative.
    score = sum(WEIGHTS[i.cause] * 0.5 ** (max(0.0, now - i.when) / half_life) for i in incidents)
    out = score >= LIMIT
    newest_first = sorted(incidents, key=lambda incident: -incident.when)
    return NodeVerdict(
        score=score,
        out=out,
        back_in=half_life * math.log2(score / LIMIT) if out else 0.0,
        reasons=tuple(f"{i.cause.value} {format_age(now - i.when)}: {i.message}" for i in newest_first),
    )


def format_age(seconds: float) -> str:
    """Format the age of an incident."""
    return f"{format_duration(seconds)} ago" if seconds >= 1 else "just now"


def format_duration(seconds: float) -> str:
    """Format a duration in a suitable unit, rounded to an integer."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
