"""Each kind of event keeps its form in JSON, and unknown events are kept."""

import json
from typing import Any

import pytest

from hpcelastic.protocol import events
from hpcelastic.protocol.events import KINDS, Event, KnownEvent, UnknownEvent, parse, to_fields
from hpcelastic.protocol.state import Cause, Phase

WORKERS = {
    "round": 2,
    "world_size": 4,
    "group_rank": 1,
    "group_world_size": 2,
    "role_rank": 2,
    "role_world_size": 4,
    "pids": {"2": 70, "10": 71},
    "cpus": "0-3,8",
}

EVENTS: list[tuple[KnownEvent, str, dict[str, Any]]] = [
    (
        events.AgentStarted(address="n1", pid=7, workers=2),
        "agent started",
        {"address": "n1", "pid": 7, "workers": 2},
    ),
    (events.AgentStarted(address="n1", pid=7), "agent started", {"address": "n1", "pid": 7}),
    (
        events.AgentRestarted(number=1, reason="killed by SIGKILL"),
        "agent restarted",
        {"number": 1, "reason": "killed by SIGKILL"},
    ),
    (events.JobEligible(since=1.7e9), "job eligible", {"since": 1.7e9}),
    (events.AgentEnded(), "agent ended", {}),
    (
        events.CheckpointSaved(round=2, step=500, path="/c/a.pt", bytes=2000, seconds=0.5),
        "checkpoint saved",
        {"round": 2, "step": 500, "path": "/c/a.pt", "bytes": 2000, "seconds": 0.5},
    ),
    (
        events.StacksWritten(request=1, round=2, path="/s/0001/a.txt"),
        "stacks written",
        {"request": 1, "round": 2, "path": "/s/0001/a.txt"},
    ),
    (
        events.GroupRequest(author="alice", request="drain n3", refusal="there is no node 'n3' in the run"),
        "group request",
        {"author": "alice", "request": "drain n3", "refusal": "there is no node 'n3' in the run"},
    ),
    (
        events.CheckpointFailed(round=2, step=500, error="no space"),
        "checkpoint failed",
        {"round": 2, "step": 500, "error": "no space"},
    ),
    (
        events.StateChanged(version=3, phase=Phase.RUNNING, round=1, restarts=0, reason="ü\n"),
        "state changed",
        {"version": 3, "phase": "running", "round": 1, "restarts": 0, "reason": "ü\n"},
    ),
    (
        events.StateChanged(
            version=3, phase=Phase.JOINING, round=1, restarts=0, reason="x", cause=Cause.NODE, lost="n2@0-a"
        ),
        "state changed",
        {
            "version": 3,
            "phase": "joining",
            "round": 1,
            "restarts": 0,
            "reason": "x",
            "cause": "node",
            "lost": "n2@0-a",
        },
    ),
    (
        events.Decided(version=3, phase=Phase.RUNNING, round=2, reason="x", members=("n1", "n2")),
        "decided",
        {"version": 3, "phase": "running", "round": 2, "reason": "x", "members": ["n1", "n2"]},
    ),
    (
        events.Decided(
            version=3,
            phase=Phase.JOINING,
            round=1,
            reason="x",
            cause=Cause.NODE,
            lost="n2@0-a",
            evidence="reported by n1",
            silence=2.5,
        ),
        "decided",
        {
            "version": 3,
            "phase": "joining",
            "round": 1,
            "reason": "x",
            "cause": "node",
            "lost": "n2@0-a",
            "evidence": "reported by n1",
            "silence": 2.5,
        },
    ),
    (
        events.PeerSuspected(peer="n2@0-a", sign="refused"),
        "peer suspected",
        {"peer": "n2@0-a", "sign": "refused"},
    ),
    (events.ClockMeasured(least=1.5, most=1.75), "clock measured", {"least": 1.5, "most": 1.75}),
    (
        events.TrainingTotals(
            round=1,
            rank=3,
            steps=5,
            before=40,
            source="disk",
            first_step=7.5,
            last_step=9.5,
            done=9.75,
            samples=(0.5, 1.5),
            saves=1,
            saving=0.25,
            total=5000,
            losses=((41.0, 0.5),),
        ),
        "training totals",
        {
            "round": 1,
            "rank": 3,
            "steps": 5,
            "before": 40,
            "source": "disk",
            "first_step": 7.5,
            "last_step": 9.5,
            "done": 9.75,
            "samples": [0.5, 1.5],
            "saves": 1,
            "saving": 0.25,
            "compiling": 0.0,
            "other": 0.0,
            "total": 5000,
            "losses": [[41.0, 0.5]],
        },
    ),
    (events.SignalReceived(signal="SIGTERM"), "signal", {"signal": "SIGTERM"}),
    (
        events.Leaving(reason="preempted", seconds=12.5, requeue="preemption"),
        "leaving",
        {"reason": "preempted", "seconds": 12.5, "requeue": "preemption"},
    ),
    (
        events.WorkersStarted(**{**WORKERS, "pids": {2: 70, 10: 71}}, gpus="0,1", bound="0-3;8"),  # type: ignore[arg-type]
        "workers started",
        {**WORKERS, "gpus": "0,1", "bound": "0-3;8"},
    ),
    (
        events.WorkersStarted(**{**WORKERS, "pids": {2: 70, 10: 71}}, resumed=(2,)),  # type: ignore[arg-type]
        "workers started",
        {**WORKERS, "resumed": [2]},
    ),
    (events.WorkersStarted(**{**WORKERS, "pids": {2: 70, 10: 71}}), "workers started", WORKERS),  # type: ignore[arg-type]
    (
        events.WorkerEnded(round=1, rank=3, exit_code=-9),
        "worker ended",
        {"round": 1, "rank": 3, "exit_code": -9},
    ),
    (
        events.TimerExpired(round=1, rank=3, pid=70, scope="train.py#7", sent="SIGKILL"),
        "timer expired",
        {"round": 1, "rank": 3, "pid": 70, "scope": "train.py#7", "sent": "SIGKILL"},
    ),
    (
        events.TimerExpired(round=1, rank=3, pid=70, scope="train.py#7"),
        "timer expired",
        {"round": 1, "rank": 3, "pid": 70, "scope": "train.py#7"},
    ),
    (events.WorkersStopped(round=1, reason="n2 joins"), "workers stopped", {"round": 1, "reason": "n2 joins"}),
    (
        events.StopRequested(round=1, seconds=120.0, reason="n2 joins"),
        "stop requested",
        {"round": 1, "seconds": 120.0, "reason": "n2 joins"},
    ),
    (
        events.WorkersStartEarly(round=1, local_ranks=(0, 1)),
        "workers start early",
        {"round": 1, "local_ranks": [0, 1]},
    ),
    (
        events.WorkersParked(round=1, reason="n2 was lost", ranks=(0, 1)),
        "workers parked",
        {"round": 1, "reason": "n2 was lost", "ranks": [0, 1]},
    ),
    (
        events.WorkerInterrupted(round=1, rank=3, error="Connection closed by peer"),
        "worker interrupted",
        {"round": 1, "rank": 3, "error": "Connection closed by peer"},
    ),
    (events.WorkersPoll(round=1), "workers poll", {"round": 1}),
    (
        events.HangExamined(
            round=2, number=1, verdict="behind", ranks=(3,), certain=True, text="rank 3", action="restart", path="/r"
        ),
        "hang examined",
        {
            "round": 2,
            "number": 1,
            "verdict": "behind",
            "ranks": [3],
            "certain": True,
            "text": "rank 3",
            "action": "restart",
            "path": "/r",
        },
    ),
    (
        events.StragglersFound(round=2, ranks=(3,), text="rank 3 is slow"),
        "stragglers found",
        {"round": 2, "ranks": [3], "text": "rank 3 is slow"},
    ),
    (
        events.HardwareFound(check="clock", seen="it was set", severity="note"),
        "hardware found",
        {"check": "clock", "seen": "it was set", "severity": "note"},
    ),
    (events.LeaseChanged(seconds=4.0, late=0.5), "lease changed", {"seconds": 4.0, "late": 0.5}),
    (events.Fenced(round=1), "fenced", {"round": 1}),
    (events.StoreServed(round=1, port=29500, pid=7), "store served", {"round": 1, "port": 29500, "pid": 7}),
    (events.StoreLost(round=1, exit_code=1), "store lost", {"round": 1, "exit_code": 1}),
    (events.StoreFailed(error="no space"), "store failed", {"error": "no space"}),
    (events.RunEnded(phase=Phase.FAILED, reason="x"), "run ended", {"phase": "failed", "reason": "x"}),
    (events.EventsDropped(count=15), "events dropped", {"count": 15}),
]

IDS = [f"{kind} {index}" for index, (_, kind, _) in enumerate(EVENTS)]


@pytest.mark.parametrize(("event", "kind", "fields"), EVENTS, ids=IDS)
def test_a_kind_keeps_its_form(event: KnownEvent, kind: str, fields: dict[str, Any]) -> None:
    """The strings and names are those in the logs of all versions."""
    assert event.kind == kind
    assert to_fields(event) == fields


@pytest.mark.parametrize(("event", "kind", "fields"), EVENTS, ids=IDS)
def test_parse_inverts_to_fields_through_json(event: KnownEvent, kind: str, fields: dict[str, Any]) -> None:
    again = parse(kind, json.loads(json.dumps(to_fields(event))))
    assert again == event
    assert repr(again) == repr(event)  # also the types: the ranks of processes are numbers


def test_the_table_has_every_kind() -> None:
    assert {type(event) for event, _, _ in EVENTS} == set(KINDS.values())


def test_each_kind_has_its_own_string() -> None:
    classes = [value for value in vars(events).values() if isinstance(value, type)]
    kinds = [(kind, value) for value in classes if isinstance(kind := vars(value).get("kind"), str)]
    assert dict(kinds) == KINDS
    assert len(kinds) == len(KINDS)


def test_an_unknown_kind_is_kept() -> None:
    event: Event = parse("node painted", {"colour": "green", "layers": [1, None]})
    assert event == UnknownEvent("node painted", {"colour": "green", "layers": [1, None]})
    assert event.kind == "node painted"
    assert to_fields(event) == {"colour": "green", "layers": [1, None]}


@pytest.mark.parametrize(
    ("old", "fields", "expected"),
    [
        ("trouble", {"error": "no space"}, events.StoreFailed(error="no space")),
        ("workers ask should_stop", {"round": 1}, events.WorkersPoll(round=1)),
    ],
)
def test_kinds_of_older_versions_are_read(old: str, fields: dict[str, Any], expected: KnownEvent) -> None:
    assert parse(old, fields) == expected


@pytest.mark.parametrize(("event", "kind", "fields"), EVENTS, ids=IDS)
def test_an_unknown_field_is_ignored(event: KnownEvent, kind: str, fields: dict[str, Any]) -> None:
    assert parse(kind, {**fields, "newer": {"than": ["this"]}}) == event


OPTIONAL = {"workers", "requeue", "gpus", "bound", "resumed", "sent", "cause", "lost", "evidence", "members"}
OPTIONAL |= {"before", "source", "first_step", "last_step", "done", "samples", "saves", "saving", "compiling", "other"}
OPTIONAL |= {"total", "losses", "refusal", "silence"}
SHAPES = [(kind, fields, name) for _, kind, fields in EVENTS for name in fields]


@pytest.mark.parametrize(("kind", "fields", "name"), SHAPES, ids=[f"{kind} {name}" for kind, _, name in SHAPES])
def test_without_a_field_an_event_is_unknown_unless_there_is_a_default(
    kind: str, fields: dict[str, Any], name: str
) -> None:
    left = {key: value for key, value in fields.items() if key != name}
    assert (parse(kind, left) == UnknownEvent(kind, left)) is (name not in OPTIONAL)


@pytest.mark.parametrize(("kind", "fields", "name"), SHAPES, ids=[f"{kind} {name}" for kind, _, name in SHAPES])
def test_with_a_field_of_a_wrong_type_an_event_is_unknown(kind: str, fields: dict[str, Any], name: str) -> None:
    wrong = {**fields, name: [{"?": 1}]}
    assert parse(kind, wrong) == UnknownEvent(kind, wrong)


@pytest.mark.parametrize("pids", [{"two": 70}, {"2": "70"}, {"2": True}, {"": 70}, [70]], ids=str)
def test_a_rank_is_a_whole_number(pids: Any) -> None:
    assert isinstance(parse("workers started", {**WORKERS, "pids": pids}), UnknownEvent)


def test_a_phase_of_a_newer_version_makes_an_event_unknown() -> None:
    assert isinstance(parse("run ended", {"phase": "paused", "reason": ""}), UnknownEvent)
