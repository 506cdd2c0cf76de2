"""Phases follow each other, and their sum is the whole."""

import pytest

from benchmarks.phases import PHASES, lengths
from hpcelastic.protocol.events import AgentStarted, Event, LoggedEvent, StateChanged, WorkerEnded, WorkersStopped
from hpcelastic.protocol.state import Phase

STARTED = AgentStarted(address="h", pid=7)
ENDED = WorkerEnded(round=1, rank=0, exit_code=1)
STOPPED = WorkersStopped(round=1, reason="")


def state(time: float, phase: str, round: int) -> LoggedEvent:
    return event(time, StateChanged(version=1, phase=Phase(phase), round=round, restarts=0, reason=""))


def event(time: float, event: Event) -> LoggedEvent:
    return LoggedEvent(time, "n1", event)


FAILURE = [
    state(1.0, "running", 1),
    event(10.1, ENDED),
    state(10.5, "joining", 1),
    state(10.6, "joining", 1),
    event(11.0, STOPPED),
    state(12.0, "running", 2),
    state(12.5, "running", 2),
    event(99.0, STOPPED),
]

START = [event(0.5, STARTED), event(0.7, STARTED), state(0.8, "joining", 0), state(1.7, "running", 1)]


@pytest.mark.parametrize(
    ("events", "since", "until", "ups", "expected"),
    [
        pytest.param(FAILURE, 10.0, 16.0, [14.0, 15.0], (0, 0.5, 0.5, 1.5, 2.5, 1.0), id="a worker failed"),
        pytest.param(START, 0.0, 3.0, [2.0, 2.5], (0.7, 0, 0, 1.0, 0.8, 0.5), id="a start has no round to end"),
        pytest.param([*FAILURE, event(11.5, STOPPED)], 10.0, 16.0, [15.0], (0, 0.5, 1.0, 1.0, 2.5, 1.0),
                     id="the last that stops counts"),
        pytest.param([state(10.2, "running", 2), state(10.9, "joining", 1)], 10.0, 12.0, [11.0],
                     (0, 0.9, 0, 0, 0.1, 1.0), id="what ended before its predecessor has length 0"),
    ],
)  # fmt: skip
def test_the_lengths_of_phases(
    events: list[LoggedEvent], since: float, until: float, ups: list[float], expected: tuple[float, ...]
) -> None:
    found = lengths(since, until, ups, events)
    assert found == pytest.approx(dict(zip(PHASES, expected, strict=True)))
    assert sum(found.values()) == pytest.approx(until - since)


def test_without_a_new_round_no_phase_is_invented() -> None:
    assert lengths(20.0, 30.0, [25.0], FAILURE) is None
