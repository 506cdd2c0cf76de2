"""The named pipe of the timers: who may write, what is read, and what is left at the end."""

import json
import os
import select
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.agent.timer_pipe import TimerPipe, TimerRequest, parse_request

REQUEST = {"version": 1, "pid": 7, "scope_id": "train.py#3", "expiration_time": 1.5, "signal": 9}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


@pytest.fixture
def pipe() -> Iterator[TimerPipe]:
    created = TimerPipe.create(None, print)
    yield created
    created.close()


def write(path: Path, data: bytes) -> None:
    """Open, write and close, as the client does for each request."""
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, data)
    os.close(fd)


def readable(pipe: TimerPipe) -> bool:
    return bool(select.select([pipe], [], [], 0)[0])


# Requests


def test_a_request_is_read() -> None:
    assert parse_request(json.dumps(REQUEST).encode()) == TimerRequest(7, "train.py#3", 1.5, 9)


@pytest.mark.parametrize(
    "changes",
    [{"expiration_time": -1, "signal": 0}, {"expiration_time": float("inf")}, {"signal": -3}, {"newer": [1]}],
    ids=str,
)
def test_a_request_may_have(changes: dict[str, Any]) -> None:
    assert parse_request(json.dumps({**REQUEST, **changes}).encode()).pid == 7


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello",
        b"\xff\xfe\x00",
        b"[" * 4096,
        b"7",
        b"[7]",
        b"{}",
        *(
            json.dumps({**REQUEST, name: value}).encode()
            for name, value in [
                ("pid", "7"),
                ("pid", True),
                ("pid", 7.5),
                ("scope_id", None),
                ("expiration_time", "soon"),
                ("expiration_time", float("nan")),
                ("expiration_time", 10**400),
                ("signal", 99),
                ("signal", 2**70),
                ("signal", "SIGKILL"),
            ]
        ),
    ],
    ids=lambda line: line[:40].decode(errors="replace"),
)
def test_any_other_line_is_no_request(line: bytes) -> None:
    with pytest.raises(ValueError):
        parse_request(line)


# Reading


def test_lines_are_returned_once_and_whole(pipe: TimerPipe) -> None:
    assert (readable(pipe), pipe.read()) == (False, [])
    write(pipe.path, b"one\ntwo\nthr")
    assert readable(pipe)
    assert pipe.read() == [b"one", b"two"]
    write(pipe.path, b"ee\n")
    assert pipe.read() == [b"three"]
    assert (readable(pipe), pipe.read()) == (False, [])


def test_a_line_without_an_end_is_not_kept(pipe: TimerPipe) -> None:
    for _ in range(5):
        write(pipe.path, b"x" * 60000)
        assert pipe.read() == []
    write(pipe.path, b"\ngood\n")
    cut, good = pipe.read()
    assert (len(cut) <= 4097, good) == (True, b"good")


# The file


def test_only_the_user_can_write(pipe: TimerPipe) -> None:
    assert stat.S_ISFIFO(pipe.path.stat().st_mode)
    assert stat.S_IMODE(pipe.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(pipe.path.parent.stat().st_mode) == 0o700


def test_nothing_is_left_at_the_end(temporary: Path) -> None:
    TimerPipe.create(None, print).close()
    assert list(temporary.iterdir()) == []


def test_the_pipe_is_at_the_path_that_is_wanted(tmp_path: Path) -> None:
    pipe = TimerPipe.create(str(tmp_path / "mine"), print)
    assert pipe.path == tmp_path / "mine"
    assert stat.S_IMODE(pipe.path.stat().st_mode) == 0o600
    pipe.close()
    assert not pipe.path.exists()


def test_a_pipe_that_nobody_reads_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    os.mkfifo(path, 0o666)
    pipe = TimerPipe.create(str(path), print)
    assert (pipe.path, stat.S_IMODE(path.stat().st_mode)) == (path, 0o600)
    pipe.close()


def test_two_agents_that_are_given_one_path_have_a_pipe_each(tmp_path: Path, temporary: Path) -> None:
    path, reports = tmp_path / "mine", list[str]()
    first = TimerPipe.create(str(path), print)
    second = TimerPipe.create(str(path), reports.append)
    assert second.path.parent.parent == temporary
    assert [line.partition(" (")[0] for line in reports] == [f"the timers cannot use {path}"]
    second.close()
    write(path, b"one\n")
    assert first.read() == [b"one"]
    first.close()


@pytest.mark.parametrize("kind", ["file", "link", "no directory"])
def test_what_is_no_pipe_stays(kind: str, tmp_path: Path) -> None:
    path, other = tmp_path / "mine", tmp_path / "other"
    other.write_text("kept")
    if kind == "file":
        path.write_text("kept")
    elif kind == "link":
        path.symlink_to(other)
    else:
        path = tmp_path / "none" / "mine"
    reports: list[str] = []
    pipe = TimerPipe.create(str(path), reports.append)
    pipe.close()
    assert len(reports) == 1
    assert other.read_text() == "kept"
    assert kind == "no directory" or path.read_text() == "kept"
