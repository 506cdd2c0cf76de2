"""Pure: where the time of a recovery went, from the event logs of our agents and the notes of the workers."""

from collections.abc import Iterable, Mapping
from typing import Any

PHASES = ("agent", "detect", "stop", "rendezvous", "start", "first step")
"""In this order; see `lengths`."""

MEANING = """\
`agent`: until every agent that was started has logged so. `detect`: until the register says that the round has ended.
`stop`: until the last worker of that round is known to be gone. `rendezvous`: until the last agent has seen the new
round. `start`: until the last worker has entered its script, its imports done. `first step`: until the last worker has
made one, the process group being set up.
"""


def lengths(
    since: float, until: float, ups: Iterable[float], events: Iterable[Mapping[str, Any]]
) -> dict[str, float] | None:
    """Seconds of each phase between ``since`` and ``until``; None if the events do not tell of a new round.

    ``events`` have their times on the same clock. Phases follow each other: one that ended before its predecessor has
    length 0. They sum up to the whole.
    """
    fresh = [event for event in events if since <= event["time"] <= until]
    running = [event for event in fresh if event["event"] == "state" and event["phase"] == "running"]
    if not running:
        return None
    newest = max(event["round"] for event in running)
    formed = max(event["time"] for event in running if event["round"] == newest)
    ended = [event["time"] for event in fresh if _ends_round(event)]
    gone = [event["time"] for event in fresh if event["event"] in ("workers stopped", "worker ended")]
    marks = {
        "agent": max((event["time"] for event in fresh if event["event"] == "agent started"), default=since),
        "detect": min(ended, default=since),
        "stop": max((time for time in gone if time <= formed), default=since),
        "rendezvous": formed,
        "start": max(ups),
        "first step": until,
    }
    found, before = {}, since
    for name in PHASES:
        after = min(max(before, marks[name]), until)
        found[name] = round(after - before, 4)
        before = after
    return found


def _ends_round(event: Mapping[str, Any]) -> bool:
    return bool(event["event"] == "state" and event["phase"] == "joining" and event["round"] > 0)
