import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.errors import StoreError
from hpcelastic.store.events import EventLog, read_events
from tests.store.forking import in_processes


def names(directory: Path) -> list[str]:
    return [event["event"] for event in read_events(directory)]


def test_an_event_tells_when_where_and_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1234.56789)
    EventLog(tmp_path / "a.jsonl", "n1").write("started", pids={0: 7}, reason="ü\n", nothing=None)
    assert read_events(tmp_path) == [
        {"time": 1234.568, "node": "n1", "event": "started", "pids": {"0": 7}, "reason": "ü\n", "nothing": None}
    ]
    assert (tmp_path / "a.jsonl").stat().st_mode & 0o777 == 0o600


def test_events_of_all_agents_come_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = {name: EventLog(tmp_path / f"{name}.jsonl", name) for name in "ab"}
    for when, log in ((3.0, "a"), (1.0, "b"), (4.0, "b"), (2.0, "a")):
        monkeypatch.setattr(time, "time", lambda when=when: when)
        logs[log].write(f"{when:g}")
    assert names(tmp_path) == ["1", "2", "3", "4"]


def test_a_line_that_was_cut_off_by_a_death_is_left_out(tmp_path: Path) -> None:
    EventLog(tmp_path / "a.jsonl", "n1").write("first")
    line = (tmp_path / "a.jsonl").read_bytes()
    for cut in range(1, len(line) - 1):
        (tmp_path / "a.jsonl").write_bytes(line + line[:cut])
        assert names(tmp_path) == ["first"]


def test_a_line_of_no_event_is_left_out(tmp_path: Path) -> None:
    EventLog(tmp_path / "a.jsonl", "n1").write("first")
    log = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "a.jsonl").write_bytes(b'7\n"text"\n[]\nnull\n{}\n{"time":"noon"}\n\xff\xfe\n\n{"time":1,"ev\n' + log)
    assert names(tmp_path) == ["first"]


def test_nothing_is_read_where_there_is_nothing(tmp_path: Path) -> None:
    assert read_events(tmp_path / "missing") == []


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(StoreError, match=r"a\.jsonl: Is a directory"):
        read_events(tmp_path)


def test_a_log_that_cannot_be_opened_is_ignored(tmp_path: Path) -> None:
    EventLog(tmp_path / "missing" / "a.jsonl", "n1").write("lost")
    EventLog(tmp_path, "n1").write("lost")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_stops_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log, open_files = EventLog(tmp_path / "a.jsonl", "n1"), len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        log.write("lost")
    log.write("kept")
    assert names(tmp_path) == ["kept"]
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_lines_of_processes_that_share_a_log_stay_whole(tmp_path: Path) -> None:
    def write(index: int) -> Any:
        log = EventLog(tmp_path / "a.jsonl", str(index))
        for i in range(100):
            log.write("line", number=i, padding="x" * 500)

    in_processes(4, write)
    events = read_events(tmp_path)
    assert sorted((event["node"], event["number"]) for event in events) == [
        (str(n), i) for n in range(4) for i in range(100)
    ]
