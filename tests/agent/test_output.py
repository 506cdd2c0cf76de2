import io
import threading
from pathlib import Path

import pytest

from hpcelastic.agent import output
from hpcelastic.agent.output import LogTail, Tee, make_logs
from hpcelastic.agent.settings import LogSettings
from hpcelastic.errors import ConfigError
from hpcelastic.storage.paths import RunPaths


@pytest.fixture(autouse=True)
def pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_POLL_INTERVAL", 0.001)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


# One log


def test_a_missing_log_has_no_lines(tmp_path: Path) -> None:
    tail = LogTail(tmp_path / "log")
    assert [*tail.read()] == []
    assert [*tail.read(rest=True)] == []
    append(tmp_path / "log", b"a\n")
    assert [*tail.read()] == ["a"]


def test_each_line_is_read_once_and_complete(tmp_path: Path) -> None:
    tail, path = LogTail(tmp_path / "log"), tmp_path / "log"
    seen = []
    for piece in (b"a", b"b\n", b"", b"c\nd\n\ne", b"f", b"\n", b"g"):
        append(path, piece)
        seen.append([*tail.read()])
    assert seen == [[], ["ab"], [], ["c", "d", ""], [], ["ef"], []]
    assert [*tail.read(rest=True)] == ["g"]
    assert [*tail.read(rest=True)] == []


def test_lines_that_are_written_while_a_log_is_read_are_left_for_the_next_time(tmp_path: Path) -> None:
    tail, path = LogTail(tmp_path / "log"), tmp_path / "log"
    append(path, b"a\nb\n")
    lines = tail.read()
    assert next(lines) == "a"
    append(path, b"c\nd")
    assert [*lines] == ["b"]
    assert [*tail.read()] == ["c"]


def test_a_character_that_is_written_in_parts_is_complete(tmp_path: Path) -> None:
    tail, path = LogTail(tmp_path / "log"), tmp_path / "log"
    data = "ü€🙂\n".encode()
    for i in range(len(data) - 1):
        append(path, data[i : i + 1])
        assert [*tail.read()] == []
    append(path, data[-1:])
    assert [*tail.read()] == ["ü€🙂"]


def test_any_bytes_are_shown(tmp_path: Path) -> None:
    append(tmp_path / "log", b"\xff\xfeok\n")
    assert [*LogTail(tmp_path / "log").read()] == ["\ufffd\ufffdok"]


# Copies


class Output(io.StringIO):
    """A stream that sets an event when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def flush(self) -> None:
        self.written.set()


def test_lines_are_copied_with_their_rank_while_the_log_grows(tmp_path: Path) -> None:
    tee, out, path = Tee(), Output(), tmp_path / "log"
    tee.follow(path, "[3] ", out)
    tee.start()
    try:
        append(path, b"first\nsec")
        assert out.written.wait(20)
        assert out.getvalue() == "[3] first\n"
        append(path, b"ond\nunfinished")
    finally:
        tee.stop()
    assert out.getvalue() == "[3] first\n[3] second\n[3] unfinished\n"


def test_the_last_lines_are_not_lost(tmp_path: Path) -> None:
    for _ in range(20):
        tee, outs = Tee(), [Output(), Output()]
        paths = [tmp_path / "0", tmp_path / "1"]
        for rank, (path, out) in enumerate(zip(paths, outs, strict=True)):
            path.write_bytes(b"")
            tee.follow(path, f"[{rank}] ", out)
        tee.start()
        for path in paths:
            append(path, b"".join(b"%d\n" % i for i in range(100)))
        tee.stop()
        for rank, out in enumerate(outs):
            assert out.getvalue() == "".join(f"[{rank}] {i}\n" for i in range(100))


def test_without_logs_there_is_no_thread() -> None:
    tee, before = Tee(), threading.active_count()
    tee.start()
    assert threading.active_count() == before
    tee.stop()


@pytest.mark.parametrize(("started", "copied"), [(False, ""), (True, "line\n")], ids=["not started", "started"])
def test_stopping_twice_copies_nothing_twice(tmp_path: Path, started: bool, copied: str) -> None:
    tee, out, path = Tee(), Output(), tmp_path / "log"
    path.write_text("line\n")
    tee.follow(path, "", out)
    if started:
        tee.start()
    tee.stop()
    tee.stop()
    assert out.getvalue() == copied


def test_lines_with_a_text_are_copied_to_another_file(tmp_path: Path) -> None:
    tee, out, path, kept = Tee(), Output(), tmp_path / "log", tmp_path / "match"
    tee.follow(path, "[0] ", out)
    tee.follow(path, "<0> ", kept, ["loss", "b,c"])
    tee.start()
    append(path, b"a\nthe loss\nb\nb,c\n")
    tee.stop()
    assert out.getvalue() == "[0] a\n[0] the loss\n[0] b\n[0] b,c\n"
    assert kept.read_text() == "<0> the loss\n<0> b,c\n"


def test_an_unwritable_file_does_not_stop_other_copies(tmp_path: Path) -> None:
    tee, out, path = Tee(), Output(), tmp_path / "log"
    tee.follow(path, "", tmp_path / "no directory" / "match", ["a"])
    tee.follow(path, "", out)
    append(path, b"a\n")
    tee.start()
    tee.stop()
    assert out.getvalue() == "a\n"


# The directory of logs


def test_logs_are_in_the_run_directory_or_behind_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACE", "else where")
    for name in ("a", "b"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    inside, outside = RunPaths(tmp_path / "runs/a"), RunPaths(tmp_path / "runs/b")
    for _ in range(2):  # another agent, or a resumed run
        make_logs(inside, LogSettings())
        make_logs(outside, LogSettings(directory="$PLACE"))
        make_logs(outside, LogSettings())
    assert not inside.logs.is_symlink() and inside.logs.is_dir()
    assert inside.logs.resolve() == inside.logs
    assert outside.logs.resolve() == tmp_path / "else where" / "b"
    for paths, kept in ((inside, inside.logs), (outside, tmp_path / "else where/b")):
        with pytest.raises(
            ConfigError, match=f"logs.directory is other, but this run keeps its logs in {kept}; do not"
        ):
            make_logs(paths, LogSettings(directory="other"))
