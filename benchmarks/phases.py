"""The phases of a recovery, from the event logs of hpcelastic's agents and the notes of workers. Pure functions."""

from collections.abc import Iterable

from hpcelastic.protocol.events import AgentStarted, Event, LoggedEvent, StateChanged, WorkerEnded, WorkersStopped
from hpcelastic.protocol.state import Phase

PHASES = ("agent", "detect", "stop", "rendezvous", "start", "first step")
"""The phases in their order; see `lengths`."""

MEANING = """\
`agent`: until every new agent has logged its start. `detect`: until the register shows the end of the round. `stop`:
until all workers of that round have ended. `rendezvous`: until the last agent has read the new round. `start`: until
the last worker has imported its modules and runs its script. `first step`: until the last worker has created the
process group and has executed a step.
"""


def lengths(since: float, until: float, ups: Iterable[float], events: Iterable[LoggedEvent]) -> dict[str, float] | None:
    """Return the seconds of each phase between ``since`` and ``until``; None if the events contain no new round.

    The times of ``events`` are on the same clock. Phases follow each other: a phase that ended before the previous one
    has length 0. Their sum is the whole time.
    """
    fresh = [(logged.time, logged.event) for logged in events if since <= logged.time <= until]
    running = [(time, e.round) for time, e in fresh if isinstance(e, StateChanged) and e.phase is Phase.RUNNING]
    if not running:
        return None
    newest = max(round for _, round in running)
    formed = max(time for time, round in running if round == newest)
    ended = [time for time, event in fresh if _ends_round(event)]
    gone = [time for time, event in fresh if isinstance(event, WorkersStopped | WorkerEnded)]
    marks = {
        "agent": max((time for time, event in fresh if isinstance(event, AgentStarted)), default=since),
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


def _ends_round(event: Event) -> bool:
    return isinstance(event, StateChanged) and event.phase is Phase.JOINING and event.round > 0
