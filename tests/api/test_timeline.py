"""The history of a run as text."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.api.run import Run
from hpcelastic.api.timeline import timeline
from hpcelastic.protocol.events import (
    AgentEnded,
    AgentRestarted,
    AgentStarted,
    CheckpointFailed,
    CheckpointSaved,
    Event,
    Fenced,
    HangExamined,
    RunEnded,
    StateChanged,
    StragglersFound,
    UnknownEvent,
    WorkerEnded,
    WorkersStarted,
)
from hpcelastic.protocol.state import Phase
from hpcelastic.storage.events import EventLog
from hpcelastic.storage.paths import RunPaths

STATE = StateChanged(version=2, phase=Phase.RUNNING, round=1, restarts=0, reason="all nodes are ready")
WORKERS = WorkersStarted(
    round=1,
    world_size=12,
    group_rank=0,
    group_world_size=1,
    role_rank=0,
    role_world_size=12,
    pids={10: 7, 9: 8},
    cpus="0",
)


HANG = HangExamined(
    round=2, number=2, verdict="behind", ranks=(3,), certain=True, text="rank 3 on n1 hangs", action="restart", path="/"
)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([AgentStarted(address="h", pid=7)], ["n1 starts"], id="a start"),
        pytest.param(
            [AgentRestarted(number=1, reason="killed")],
            ["n1: its agent died (killed) and was restarted"],
            id="a restart",
        ),
        pytest.param([STATE, STATE], ["running   round 1: all nodes are ready"], id="a version is shown once"),
        pytest.param([WORKERS], ["n1 runs rank 9, 10 of 12 in round 1"], id="workers"),
        pytest.param(
            [WorkerEnded(round=1, rank=9, exit_code=0), WorkerEnded(round=1, rank=10, exit_code=-9)],
            ["n1: rank 10 ended with -9"],
            id="only failures are shown",
        ),
        pytest.param(
            [WorkerEnded(round=1, rank=10, exit_code=-9, mark="step", mark_value=120, mark_age=0.42)],
            ["n1: rank 10 ended with -9, 0.4 s after its last mark: step 120"],
            id="the last mark",
        ),
        pytest.param([Fenced(round=1), AgentEnded()], ["n1: fenced", "n1: agent ended"], id="ends"),
        pytest.param(
            [
                CheckpointSaved(round=1, step=4, path="a.pt", bytes=9, seconds=0.1),
                CheckpointFailed(round=1, step=5, error="no space"),
            ],
            ["n1: the checkpoint of step 5 is not saved: no space"],
            id="checkpoints",
        ),
        pytest.param(
            [
                replace(HANG, number=1, verdict="progress", text="rank 3 still works", action="none"),
                HANG,
            ],
            ["n1: no progress in round 2: rank 3 on n1 hangs (restart)"],
            id="a hang",
        ),
        pytest.param(
            [StragglersFound(round=2, ranks=(3,), text="rank 3 is slow"), StragglersFound(round=2, ranks=(), text="")],
            ["n1: round 2: rank 3 is slow"],
            id="stragglers",
        ),
        pytest.param(
            [STATE, replace(STATE, version=3), replace(STATE, version=4, round=2)],
            ["running   round 1: all nodes are ready", "running   round 2: all nodes are ready"],
            id="a version without another phase or reason",
        ),
        pytest.param([RunEnded(phase=Phase.SUCCEEDED, reason="x")], [], id="other events are left out"),
        pytest.param(
            [UnknownEvent("node painted", {"colour": "green", "layers": [1]})],
            ["n1: node painted (colour: green, layers: [1])"],
            id="an unknown event",
        ),
        pytest.param([UnknownEvent("slept", {})], ["n1: slept"], id="an unknown event without fields"),
    ],
)
def test_a_line_for_each_event(tmp_path: Path, events: list[Event], expected: list[str]) -> None:
    paths = RunPaths(tmp_path)
    for directory in (paths.register, paths.events):
        directory.mkdir(parents=True)
    log = EventLog(paths.event_log("n1@0"), "n1")
    for event in events:
        log.write(event)
    assert log.close(10)
    assert [line.partition(" s  ")[2] for line in timeline(Run(tmp_path))] == expected
