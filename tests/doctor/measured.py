"""Measurements of filesystems without faults, with changes by a test."""

from dataclasses import replace
from typing import Any

from hpcelastic.doctor.measurements import (
    Access,
    AcrossMeasurements,
    Lag,
    Measurements,
    NodeMeasurements,
    Result,
    Space,
    Times,
    Trial,
    Visibility,
)
from hpcelastic.storage.mounts import Mount

NFS = Mount("nfs4", "server:/export", "/scratch", ("rw", "vers=4.2", "local_lock=none"))
WORKS = Trial(Result.WORKS)
LIMIT = 35.0
AT_ONCE = Lag(0.0, LIMIT)
NEVER = Lag(None, LIMIT)


def fails(detail: str) -> Trial:
    return Trial(Result.FAILS, detail)


def late(seconds: float) -> Lag:
    return Lag(seconds, LIMIT)


SOUND = NodeMeasurements(
    "n0",
    client="n0",
    mount=NFS,
    access=Access("me", ours=True, roots=False, mode=0o700),
    space=Space(1 << 40, 1 << 30),
    read_back=WORKS,
    hard_links=WORKS,
    symbolic_links=WORKS,
    exclusive=WORKS,
    replacement=WORKS,
    durable_file=WORKS,
    durable_directory=WORKS,
    publishing=Times(0.004, 0.01),
    listing=Times(0.001, 0.002),
    reading=Times(0.001, 0.002),
)

SEES = Visibility(AT_ONCE, AT_ONCE, AT_ONCE, AT_ONCE, AT_ONCE, AT_ONCE, watched=1.5)

TOGETHER = AcrossMeasurements(WORKS, round_trip=Times(0.01, 0.02), visibility=(SEES, SEES))


def alone(**changes: Any) -> Measurements:
    """Return the measurements of one node."""
    return Measurements((replace(SOUND, **changes),))


def together(
    node: dict[str, Any] | None = None, visibility: dict[str, Any] | None = None, **changes: Any
) -> Measurements:
    """Return the measurements of two nodes: changes of the second one's own, of its visibility, and of joint ones."""
    second = replace(SOUND, **{"node": "n1", "client": "n1", **(node or {})})
    both = (SEES, replace(SEES, **(visibility or {})))
    return Measurements((SOUND, second), replace(TOGETHER, visibility=both, **changes))
