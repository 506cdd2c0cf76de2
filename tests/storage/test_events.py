import contextlib
import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.errors import StoreError
from hpcelastic.protocol.events import (
    AgentStarted,
    ClockMeasured,
    EventsDropped,
    Fenced,
    LoggedEvent,
    PeerSuspected,
    StateChanged,
    StoreFailed,
    UnknownEvent,
    WorkersStarted,
)
from hpcelastic.protocol.state import Cause, Phase
from hpcelastic.storage import clock, files
from hpcelastic.storage import events as event_log
from hpcelastic.storage.events import EventLog, last_round_ended_by, read_event_lines, read_events, read_logs
from tests.storage.forking import TIMEOUT, in_processes


@contextlib.contextmanager
def log(path: Path, node: str = "n1") -> Iterator[EventLog]:
    """A log that is closed at the end."""
    events = EventLog(path, node)
    try:
        yield events
    finally:
        assert events.close(TIMEOUT)


def written(directory: Path) -> list[LoggedEvent]:
    """Return the events without those that the log writes itself."""
    return [logged for logged in read_events(directory) if not isinstance(logged.event, ClockMeasured)]


def lines(directory: Path) -> list[dict[str, Any]]:
    """Return the lines without those that the log writes itself."""
    return [line for line in read_event_lines(directory) if line["event"] != ClockMeasured.kind]


def names(directory: Path) -> list[str]:
    return [logged.event.kind for logged in written(directory)]


def named(name: str, **fields: Any) -> UnknownEvent:
    """Return an event of an unknown kind."""
    return UnknownEvent(name, fields)


def test_an_event_has_times_node_and_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1234.56789012)
    monkeypatch.setattr(event_log, "now", lambda: 77.12345678)
    with log(tmp_path / "a.jsonl") as events:
        events.write(named("started", pids={0: 7}, reason="ü\n", nothing=None))
    fields = {"pids": {"0": 7}, "reason": "ü\n", "nothing": None}
    assert lines(tmp_path) == [{"time": 1234.56789, "up": 77.123457, "node": "n1", "event": "started", **fields}]
    assert written(tmp_path) == [LoggedEvent(1234.56789, "n1", UnknownEvent("started", fields), 77.123457)]
    assert (tmp_path / "a.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_known_event_is_read_with_its_type(tmp_path: Path) -> None:
    started = WorkersStarted(
        round=1,
        world_size=2,
        group_rank=0,
        group_world_size=1,
        role_rank=0,
        role_world_size=2,
        pids={0: 7, 1: 8},
        cpus="0-3",
    )
    with log(tmp_path / "a.jsonl") as events:
        events.write(started)
        events.write(Fenced(round=1))
    assert [logged.event for logged in written(tmp_path)] == [started, Fenced(round=1)]
    (line, _) = lines(tmp_path)
    assert line["event"] == "workers started"
    assert line["pids"] == {"0": 7, "1": 8}
    assert "gpus" not in line


def test_the_events_of_each_agent_are_in_the_order_of_its_log(tmp_path: Path) -> None:
    with log(tmp_path / "n1@0-a.jsonl") as events:
        events.write(Fenced(round=2))
        events.write(Fenced(round=1))
    with (tmp_path / "n1@0-a.jsonl").open("a") as file:
        file.write("torn\n")
    with log(tmp_path / "n1@1-b.jsonl") as events:
        events.write(Fenced(round=3))
    (tmp_path / "n1@1-b.txt").write_text("no log")
    found = read_logs(tmp_path)
    rounds = {node: [e.event.round for e in events if isinstance(e.event, Fenced)] for node, events in found.items()}
    assert rounds == {"n1@0-a": [2, 1], "n1@1-b": [3]}
    assert [e.line for e in found["n1@0-a"] if isinstance(e.event, Fenced)] == [1, 3]


def clocks(directory: Path) -> list[ClockMeasured]:
    return [logged.event for logged in read_events(directory) if isinstance(logged.event, ClockMeasured)]


def test_the_filesystems_clock_is_measured_when_the_log_is_created(tmp_path: Path) -> None:
    real = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    with log(tmp_path / "a.jsonl") as events:
        events.write(named("first"))
        events.write(named("second"))
    (measured,) = clocks(tmp_path)
    assert measured.least <= real + 0.001 and real - 0.001 <= measured.most
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl"]


def test_the_clock_of_a_log_that_exists_is_measured_by_another_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    with log(tmp_path / "a.jsonl") as events:
        events.write(named("first"))
    assert len(clocks(tmp_path)) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl"]


def test_a_clock_that_has_changed_is_logged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_CLOCK_INTERVAL", 0.0)
    with log(tmp_path / "a.jsonl") as events:
        events.write(named("first"))
        idle(events)
        events.write(named("second"))
        idle(events)
        assert len(clocks(tmp_path)) == 1  # the second measurement agrees with the first one
        boottime = clock.now
        monkeypatch.setattr(clock, "now", lambda: boottime() - 50.0)
        events.write(named("third"))
        idle(events)
    before, after = clocks(tmp_path)
    assert after.least - before.least == pytest.approx(50.0, abs=5.0)


def test_an_event_with_a_missing_field_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"time":1,"node":"n1","event":"fenced","why":"?"}\n')
    assert read_events(tmp_path) == [LoggedEvent(1.0, "n1", UnknownEvent("fenced", {"why": "?"}))]


def test_events_of_all_agents_are_in_the_order_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with log(tmp_path / "a.jsonl") as a, log(tmp_path / "b.jsonl") as b:
        for when, events in ((3.0, a), (1.0, b), (4.0, b), (2.0, a)):
            monkeypatch.setattr(time, "time", lambda when=when: when)
            events.write(named(f"{when:g}"))
    assert names(tmp_path) == ["1", "2", "3", "4"]


def test_an_incomplete_line_is_ignored(tmp_path: Path) -> None:
    with log(tmp_path / "a.jsonl") as events:
        events.write(named("first"))
    line = (tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)[0]
    for cut in range(1, len(line) - 1):
        (tmp_path / "a.jsonl").write_bytes(line + line[:cut])
        assert names(tmp_path) == ["first"]


def test_a_line_without_an_event_is_ignored(tmp_path: Path) -> None:
    with log(tmp_path / "a.jsonl") as events:
        events.write(named("first"))
    line = (tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)[0]
    (tmp_path / "a.jsonl").write_bytes(b'7\n"text"\n[]\nnull\n{}\n{"time":"noon"}\n\xff\xfe\n\n{"time":1,"ev\n' + line)
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(b'{"event":"x","node":"n1","time":1%s}\n{"event":"x","node":"n1","time":NaN}\n' % (b"0" * 400))
    assert names(tmp_path) == ["first"]


def test_a_missing_directory_has_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path / "missing") == []


def test_the_error_names_an_unreadable_log(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(StoreError, match=r"a\.jsonl: Is a directory"):
        read_events(tmp_path)


def test_a_log_that_cannot_be_opened_is_ignored(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "a.jsonl", tmp_path):
        with log(path) as events:
            events.write(named("lost"))
    assert os.listdir(tmp_path) == []


def full_after(count: int) -> Callable[[int, bytes], int]:
    """Let the disk accept only so many bytes."""
    write, left = os.write, count

    def short(fd: int, data: bytes) -> int:
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(fd, bytes(data)[:left])
        left -= written
        return written

    return short


@pytest.mark.parametrize("room", [0, 1, 30], ids=["no byte", "one byte", "half a line"])
def test_a_full_disk_does_not_damage_later_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    open_files = len(os.listdir("/proc/self/fd"))
    with log(tmp_path / "a.jsonl") as events:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full_after(room))
            events.write(named("lost"))
            idle(events)
        events.write(named("kept"))
        events.write(named("kept too"))
    assert names(tmp_path) == ["kept", "kept too"]
    assert len(os.listdir("/proc/self/fd")) == open_files


def idle(events: EventLog) -> None:
    """Wait until every write has been tried."""
    deadline = time.monotonic() + TIMEOUT
    while events._queue.unfinished_tasks:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_lines_of_processes_that_share_a_log_are_complete(tmp_path: Path) -> None:
    def write(index: int) -> Any:
        with log(tmp_path / "a.jsonl", str(index)) as events:
            for i in range(100):
                events.write(named("line", number=i, padding="x" * 500))

    in_processes(4, write)
    events = lines(tmp_path)
    assert sorted((event["node"], event["number"]) for event in events) == [
        (str(n), i) for n in range(4) for i in range(100)
    ]


class Hung:
    """A filesystem that does not answer until it is released."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reached, self.released = threading.Event(), threading.Event()
        opened = os.open

        def hang(*args: Any, **more: Any) -> int:
            if threading.current_thread().name == "events":
                self.reached.set()
                assert self.released.wait(TIMEOUT)
            return opened(*args, **more)

        patch.setattr(os, "open", hang)


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hung]:
    filesystem = Hung(monkeypatch)
    yield filesystem
    filesystem.released.set()


def test_a_hung_filesystem_does_not_block_writers_and_keeps_the_order(tmp_path: Path, hung: Hung) -> None:
    with log(tmp_path / "a.jsonl") as events:
        for i in range(50):
            events.write(named("line", number=i))
        assert hung.reached.wait(TIMEOUT)
        assert not (tmp_path / "a.jsonl").exists()
        hung.released.set()
    in_file = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["number"] for line in in_file if line["event"] == "line"] == list(range(50))


def test_events_beyond_the_queue_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hung: Hung
) -> None:
    monkeypatch.setattr(event_log, "MAX_QUEUED", 10)
    with log(tmp_path / "a.jsonl") as events:
        events.write(named("taken out"))
        assert hung.reached.wait(TIMEOUT)
        for i in range(25):
            events.write(named(f"{i}"))
        hung.released.set()
        idle(events)
        events.write(named("after"))
    assert names(tmp_path) == ["taken out", *(f"{i}" for i in range(10)), "events dropped", "after"]
    assert EventsDropped(count=15) in [logged.event for logged in read_events(tmp_path)]


@pytest.mark.parametrize("waiting", [1, 2], ids=["space in the queue", "a full queue"])
def test_closing_waits_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hung: Hung, waiting: int
) -> None:
    monkeypatch.setattr(event_log, "MAX_QUEUED", 1)
    events = EventLog(tmp_path / "a.jsonl", "n1")
    events.write(named("taken out"))
    assert hung.reached.wait(TIMEOUT)
    for _ in range(waiting - 1):
        events.write(named("waits"))
    assert not events.close(0.01)
    hung.released.set()
    assert events.close(TIMEOUT)


def test_a_log_that_was_never_written_closes_at_once(tmp_path: Path) -> None:
    before = threading.active_count()
    assert EventLog(tmp_path / "a.jsonl", "n1").close(0.0)
    assert threading.active_count() == before


def test_events_of_other_rounds_are_left_out_on_request(tmp_path: Path) -> None:
    with log(tmp_path / "n1@0-a.jsonl") as events:
        for round in (1, 2, 12, 3):
            events.write(Fenced(round=round))
        events.write(StoreFailed(error='"round":9'))  # belongs to no round, whatever its text
    (found,) = read_logs(tmp_path, rounds={2, 3}).values()
    assert [e.event.round for e in found if isinstance(e.event, Fenced)] == [2, 3]
    assert [e.line for e in found if isinstance(e.event, Fenced)] == [3, 5]
    assert any(isinstance(e.event, StoreFailed) for e in found) and any(
        isinstance(e.event, ClockMeasured) for e in found
    )


def test_the_rounds_that_have_ended_by_a_cause(tmp_path: Path) -> None:
    def ended(round: int, cause: Cause | None, reason: str = "x") -> StateChanged:
        return StateChanged(version=1, phase=Phase.JOINING, round=round, restarts=0, reason=reason, cause=cause)

    with log(tmp_path / "n1@0-a.jsonl") as events:
        events.write(ended(1, Cause.WORKER))
        events.write(ended(2, Cause.JOIN))
        events.write(ended(3, None, '"round":7,"cause":"worker"'))
    with log(tmp_path / "n2@0-a.jsonl") as events:
        events.write(ended(14, Cause.NODE, "ü" * 200))
    assert last_round_ended_by(tmp_path, ("worker", "node")) == 14
    assert last_round_ended_by(tmp_path / "missing", ("worker",)) == 0


# Events of old rounds


@pytest.mark.parametrize("before", [0, 1, 2, 5, 9, 11])
def test_lines_before_a_round_are_removed_and_the_others_keep_their_numbers(tmp_path: Path, before: int) -> None:
    path = tmp_path / "n1@0-a.jsonl"
    with log(path) as events:
        events.write(AgentStarted(address="h", pid=7, workers=1))
        for round in range(1, 11):
            events.write(PeerSuspected(peer=f"before {round}", sign="refused"))
            events.write(Fenced(round=round))
    whole = read_logs(tmp_path)["n1@0-a"]
    size = event_log.remove_before(path, before)
    found = read_logs(tmp_path)["n1@0-a"]
    assert size == path.stat().st_size
    if before in (0, 11):  # no line is older, or none is newer
        assert found == whole and b"next_line" not in path.read_bytes()
        return
    first = next(i for i, each in enumerate(whole) if each.event == Fenced(round=before))
    assert found[2:] == whole[first:], "with the numbers of their lines"
    assert [type(each.event) for each in found[:2]] == [AgentStarted, ClockMeasured]
    assert event_log.remove_before(path, before) == size, "nothing is left to be removed"
    event_log.remove_before(path, before + 1)
    assert read_logs(tmp_path)["n1@0-a"] == [*found[:2], *(each for each in whole if each.line > whole[first].line + 1)]


def test_a_large_log_loses_the_events_of_old_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_BYTES", 10_000)
    path, sizes, oldest = tmp_path / "n1@0-a.jsonl", list[int](), 0

    def first_needed() -> int:
        sizes.append(path.stat().st_size)
        return oldest

    events = EventLog(path, "n1", first_needed)
    for number in range(1, 200):
        oldest = number - 10
        events.write(UnknownEvent("note", {"round": number, "text": "x" * 300}))
        idle(events)
    assert events.close(TIMEOUT)
    assert path.stat().st_size < max(sizes) < 16_000 and len(sizes) > 5
    assert [each.line for each in read_logs(tmp_path)["n1@0-a"][-3:]] == [198, 199, 200], "one line is of the clock"


def test_a_large_log_that_must_stay_is_not_read_at_each_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_BYTES", 10_000)
    asked = []

    def first_needed() -> int:
        asked.append(1)
        if len(asked) % 2:
            raise StoreError("the account cannot be read")
        return 0

    with_limit = EventLog(tmp_path / "n1@0-a.jsonl", "n1", first_needed)
    for number in range(1, 200):
        with_limit.write(UnknownEvent("note", {"round": number, "text": "x" * 300}))
        idle(with_limit)
    assert with_limit.close(TIMEOUT)
    assert len(read_logs(tmp_path)["n1@0-a"]) == 200
    assert 5 < len(asked) < 20


@pytest.mark.parametrize("fails", ["the log", "the account", "the import of a module"])
def test_a_large_log_that_cannot_be_read_once_loses_no_event(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "MAX_BYTES", 10_000)
    path, read = tmp_path / "n1@0-a.jsonl", files.read
    errors: list[Exception] = [OSError(errno.EIO, os.strerror(errno.EIO))]
    if fails == "the import of a module":
        errors = [ImportError("the package was removed")]

    def fail_once() -> int:
        if errors:
            raise errors.pop()
        return 0

    def read_log(asked: Path) -> bytes | None:
        if asked == path:
            fail_once()
        return read(asked)

    if fails == "the log":
        monkeypatch.setattr(files, "read", read_log)
    events = EventLog(path, "n1", fail_once if fails != "the log" else lambda: 0)
    for number in range(1, 200):
        events.write(UnknownEvent("note", {"round": number, "text": "x" * 300}))
    assert events.close(TIMEOUT)
    assert len(read_logs(tmp_path)["n1@0-a"]) == 200 and not errors


def test_a_log_without_a_limit_keeps_all_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_BYTES", 1000)
    with log(tmp_path / "n1@0-a.jsonl") as events:
        for number in range(1, 20):
            events.write(UnknownEvent("note", {"round": number, "text": "x" * 300}))
    assert len(read_logs(tmp_path)["n1@0-a"]) == 20
