"""Which nodes to leave out, by what went wrong on them.

Pure. Each incident has a weight, which halves in each half-life; a node whose weights come to `LIMIT` is out. A failed
check or an error of the hardware puts a node out at once, and for a half-life. What may have another cause, a loss of
power say, does not by itself, only when it happens again and again.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpcelastic.health.incidents import Incident, Trouble

LIMIT = 1.0

WEIGHTS = {
    Trouble.CHECK: 2.0,
    Trouble.HARDWARE: 2.0,
    Trouble.SUSPECT: 0.7,
    Trouble.LOST: 0.4,
    Trouble.FENCED: 0.2,
}


@dataclass(frozen=True)
class Verdict:
    """What is to be thought of a node."""

    score: float
    """The weights of its incidents as they are now."""

    out: bool
    """True if it should not take part; invariant: ``score`` is at least `LIMIT`."""

    back_in: float
    """Seconds until it is out no longer, if nothing else happens; 0 if it is not out."""

    reasons: tuple[str, ...]
    """Its incidents in words, the newest first."""


def verdicts(incidents: Iterable[Incident], now: float, half_life: float) -> Mapping[str, Verdict]:
    """The verdict on each node that had an incident; ``now`` in seconds since the epoch, ``half_life`` in seconds."""
    by_host: dict[str, list[Incident]] = {}
    for incident in incidents:
        by_host.setdefault(incident.host, []).append(incident)
    return {host: _verdict(by_host[host], now, half_life) for host in sorted(by_host)}


def nodes_out(judged: Mapping[str, Verdict]) -> tuple[str, ...]:
    return tuple(host for host, verdict in judged.items() if verdict.out)


def _verdict(incidents: list[Incident], now: float, half_life: float) -> Verdict:
    # Who noted it may have a clock that is ahead.
    score = sum(WEIGHTS[i.cause] * 0.5 ** (max(0.0, now - i.when) / half_life) for i in incidents)
    out = score >= LIMIT
    newest_first = sorted(incidents, key=lambda incident: -incident.when)
    return Verdict(
        score=score,
        out=out,
        back_in=half_life * math.log2(score / LIMIT) if out else 0.0,
        reasons=tuple(f"{i.cause.value} {ago(now - i.when)}: {i.message}" for i in newest_first),
    )


def ago(seconds: float) -> str:
    """How long ago something was, for a person."""
    return f"{in_words(seconds)} ago" if seconds >= 1 else "just now"


def in_words(seconds: float) -> str:
    """A duration for a person, to two digits or so."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
