"""Phases follow each other and sum up to the whole."""

from typing import Any

import pytest

from benchmarks.phases import PHASES, lengths


def state(time: float, phase: str, round: int) -> dict[str, Any]:
    return {"time": time, "event": "state", "phase": phase, "round": round}


def event(time: float, name: str) -> dict[str, Any]:
    return {"time": time, "event": name}


FAILURE = [
    state(1.0, "running", 1),
    event(10.1, "worker ended"),
    state(10.5, "joining", 1),
    state(10.6, "joining", 1),
    event(11.0, "workers stopped"),
    state(12.0, "running", 2),
    state(12.5, "running", 2),
    event(99.0, "workers stopped"),
]

START = [event(0.5, "agent started"), event(0.7, "agent started"), state(0.8, "joining", 0), state(1.7, "running", 1)]


@pytest.mark.parametrize(
    ("events", "since", "until", "ups", "expected"),
    [
        pytest.param(FAILURE, 10.0, 16.0, [14.0, 15.0], (0, 0.5, 0.5, 1.5, 2.5, 1.0), id="a worker failed"),
        pytest.param(START, 0.0, 3.0, [2.0, 2.5], (0.7, 0, 0, 1.0, 0.8, 0.5), id="a start has no round to end"),
        pytest.param([*FAILURE, event(11.5, "workers stopped")], 10.0, 16.0, [15.0], (0, 0.5, 1.0, 1.0, 2.5, 1.0),
                     id="the last that stops counts"),
        pytest.param([state(10.2, "running", 2), state(10.9, "joining", 1)], 10.0, 12.0, [11.0],
                     (0, 0.9, 0, 0, 0.1, 1.0), id="what ended before its predecessor has length 0"),
    ],
)  # fmt: skip
def test_lengths(
    events: list[dict[str, Any]], since: float, until: float, ups: list[float], expected: tuple[float, ...]
) -> None:
    found = lengths(since, until, ups, events)
    assert found == pytest.approx(dict(zip(PHASES, expected, strict=True)))
    assert sum(found.values()) == pytest.approx(until - since)


def test_without_news_of_a_new_round_nothing_is_made_up() -> None:
    assert lengths(20.0, 30.0, [25.0], FAILURE) is None
