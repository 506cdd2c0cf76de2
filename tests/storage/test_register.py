import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import filelock
import pytest

from hpcelastic.errors import StoreError
from hpcelastic.storage import files, locks
from hpcelastic.storage.register import Register, Version
from tests.storage.forking import in_processes, lock_held


def values(directory: Path) -> list[Any]:
    history = Register(directory, "reader")
    return [history.version(number).value for number in history.numbers()]


# One writer


def test_an_unwritten_register_has_version_0(tmp_path: Path) -> None:
    assert Register(tmp_path, "a").read() == Version(0, None)
    assert Register(tmp_path / "missing", "a").read() == Version(0, None)


def test_a_committed_value_is_read_by_all(tmp_path: Path) -> None:
    writer = Register(tmp_path, "a")
    assert writer.commit(0, {"x": [1, None]})
    assert writer.read() == Register(tmp_path, "b").read() == Version(1, {"x": [1, None]})


def test_a_taken_number_is_refused(tmp_path: Path) -> None:
    a, b = Register(tmp_path, "a"), Register(tmp_path, "b")
    assert a.commit(0, "a's")
    assert not b.commit(0, "b's")
    assert not a.commit(0, "a's"), "also with the same value by the same writer"
    assert b.read() == Version(1, "a's")


def test_a_writer_with_an_old_version_cannot_win(tmp_path: Path) -> None:
    sleeper, other = Register(tmp_path, "sleeper"), Register(tmp_path, "other")
    sleeper.commit(0, 0)
    before = sleeper.read().number
    for i in range(5):
        other.update(lambda _, i=i: i)
    assert not sleeper.commit(before, "late")
    assert values(tmp_path) == [0, 0, 1, 2, 3, 4]


def test_every_version_is_kept_with_its_writer(tmp_path: Path) -> None:
    for i, writer in enumerate("abc"):
        Register(tmp_path, writer).commit(i, i)
    assert values(tmp_path) == [0, 1, 2]
    written = [json.loads((tmp_path / name).read_bytes()) for name in sorted(files.names(tmp_path)) if name != "lock"]
    assert [(document["version"], document["writer"]) for document in written] == [(1, "a"), (2, "b"), (3, "c")]


def test_ten_versions_and_more_are_ordered_by_number(tmp_path: Path) -> None:
    writer = Register(tmp_path, "a")
    for i in range(12):
        writer.commit(i, i + 1)
    assert writer.read() == Register(tmp_path, "b").read() == Version(12, 12)
    assert writer.numbers() == list(range(1, 13))


def test_a_read_never_returns_an_older_version(tmp_path: Path) -> None:
    reader = Register(tmp_path, "a")
    reader.commit(0, "one")
    reader.commit(1, "two")
    assert reader.read().number == 2
    (tmp_path / "v0000000002.json").unlink()  # like a stale listing
    assert reader.read() == Version(2, "two")


def test_a_committed_value_is_read_back_despite_a_late_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Register(tmp_path, "a")
    writer.commit(0, "one")
    before = os.listdir(tmp_path)
    writer.update(lambda _: ("two", {1: 2}))
    monkeypatch.setattr(os, "listdir", lambda path: before)
    assert writer.read() == Version(2, ["two", {"1": 2}]), "as all read it"


def vanished(directory: Path) -> None:
    shutil.rmtree(directory)


def emptied(directory: Path) -> None:
    """Remove all files, like the empty mount point of a missing filesystem."""
    shutil.rmtree(directory)
    directory.mkdir()


@pytest.mark.parametrize("end", [vanished, emptied])
def test_missing_versions_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    register = Register(tmp_path / "register", "a")
    (tmp_path / "register").mkdir()
    register.commit(0, "one")
    end(tmp_path / "register")
    for _ in range(2):
        with pytest.raises(StoreError, match="its 1 versions are gone; check that the shared filesystem is mounted"):
            register.read()
        with pytest.raises(StoreError, match="are gone"):
            register.update(lambda old: "two")


def test_an_empty_listing_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    register = Register(tmp_path, "a")
    register.commit(0, "one")
    listdir, empty = os.listdir, [[], [], []]
    monkeypatch.setattr(os, "listdir", lambda path: empty.pop() if empty else listdir(path))
    assert register.read() == Version(1, "one")
    assert not empty


@pytest.mark.parametrize(("misses", "fine"), [pytest.param(3, True, id="soon"), pytest.param(1000, False, id="never")])
def test_the_wait_for_a_listed_version_that_cannot_be_opened_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, misses: int, fine: bool
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    Register(tmp_path, "a").commit(0, "one")
    read_bytes, left = Path.read_bytes, [errno.ENOENT] * misses

    def absent(path: Path) -> bytes:
        if left:
            raise OSError(left.pop(), "cached as absent")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", absent)
    if fine:
        assert Register(tmp_path, "b").read() == Version(1, "one")
        assert len(slept) == misses
    else:
        with pytest.raises(StoreError, match=r"v0000000001\.json: is listed, but this node can't open it"):
            Register(tmp_path, "b", visibility_timeout=7.0).read()
        assert 7.0 <= sum(slept) <= 8.0


def test_other_files_are_no_versions(tmp_path: Path) -> None:
    for name in ("lock", "v.json", "vx.json", "v0000000009.json.bak", "w0000000009.json", ".draft-v0000000009.json.ab"):
        (tmp_path / name).write_text("no version")
    assert Register(tmp_path, "a").read() == Version(0, None)


DAMAGED = [
    pytest.param(b"", "not JSON", id="empty"),
    pytest.param(b'{"version":2,"val', "not JSON", id="incomplete"),
    pytest.param(b"[]", "not version 2 of a register", id="no object"),
    pytest.param(b'{"version":3,"value":1}', "not version 2 of a register", id="another number"),
    pytest.param(b'{"version":2}', "not version 2 of a register", id="no value"),
]


@pytest.mark.parametrize(("data", "problem"), DAMAGED)
def test_the_error_names_a_damaged_newest_version_and_the_remedy(tmp_path: Path, data: bytes, problem: str) -> None:
    Register(tmp_path, "a").commit(0, 1)
    (tmp_path / "v0000000002.json").write_bytes(data)
    with pytest.raises(StoreError, match=rf"v0000000002\.json: {problem}.*restore or remove it"):
        Register(tmp_path, "b").read()
    (tmp_path / "v0000000002.json").unlink()
    assert Register(tmp_path, "b").read() == Version(1, 1), "the remedy works"


def test_a_version_of_a_newer_writer_is_read(tmp_path: Path) -> None:
    (tmp_path / "v0000000001.json").write_text('{"version":1,"value":{"x":1},"signature":"newer"}')
    assert Register(tmp_path, "a").read() == Version(1, {"x": 1})


def test_a_commit_in_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file or directory"):
        Register(tmp_path / "missing", "a").commit(0, 1)


def test_an_update_uses_a_commit_that_was_made_meanwhile(tmp_path: Path) -> None:
    a, b, calls = Register(tmp_path, "a"), Register(tmp_path, "b"), []

    def change(old: int | None) -> int:
        if not calls:
            b.commit(0, 10)  # in spite of the lock, as on a mount with local locks
        calls.append(old)
        return (old or 0) + 1

    assert a.update(change) == Version(2, 11)
    assert calls == [None, 10]


# Many writers


def no_lock(patch: pytest.MonkeyPatch) -> None:
    class Open:
        def __init__(self, *args: Any, **more: Any) -> None:
            pass

        def acquire(self, **more: Any) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

    patch.setattr(filelock, "FileLock", Open)


def directory_instead(patch: pytest.MonkeyPatch) -> None:
    """Make the lock's file a directory, which cannot be locked."""
    os.mkdir("lock")


def soft_lock_left(patch: pytest.MonkeyPatch) -> None:
    """Leave the lock file of a dead holder, as an older version did."""
    Path("lock.soft").write_text("1\nanother-host\n")


LOCKS = [  # the errors that make a lock ineffective are in tests/storage/test_locks.py
    pytest.param(lambda patch: None, id="lock"),
    pytest.param(directory_instead, id="no lock"),
    pytest.param(soft_lock_left, id="left-over lock file"),
    pytest.param(no_lock, id="lock without effect"),
]


@pytest.mark.parametrize("lock", LOCKS)
def test_concurrent_increments_are_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: Callable[[pytest.MonkeyPatch], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    lock(monkeypatch)
    hammer_exactly(tmp_path, 4, 100)


def test_concurrent_increments_are_exact_with_symbolic_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **more: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    hammer_exactly(tmp_path, 4, 50)


def test_concurrent_increments_are_exact_while_a_stopped_process_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "LOCK_TIMEOUT", 0.01)
    with lock_held(tmp_path / "lock"):
        hammer_exactly(tmp_path, 4, 25)


def test_the_wait_for_a_lock_is_bounded(tmp_path: Path) -> None:
    with lock_held(tmp_path / "lock"):
        assert in_processes(1, lambda _: Register(tmp_path, "a").update(lambda _: "done").number) == [1]


def hammer_exactly(directory: Path, writers: int, increments: int) -> None:
    def hammer(writer: int) -> list[int]:
        counter = Register(directory, str(writer))
        return [counter.update(lambda old: (old or 0) + 1).value for _ in range(increments)]

    total = writers * increments
    returned = in_processes(writers, hammer)
    assert sorted(chain.from_iterable(returned)) == list(range(1, total + 1)), "each increment has one writer"
    assert all(mine == sorted(mine) for mine in returned)
    assert values(directory) == list(range(1, total + 1))


@pytest.mark.parametrize("writers", [2, 8])
def test_one_of_all_updates_of_the_same_version_wins(tmp_path: Path, writers: int) -> None:
    def race(writer: int) -> list[int]:
        mine = Register(tmp_path, str(writer))
        return [number for number in range(20) if mine.commit(number, writer)]

    won = in_processes(writers, race)
    assert sorted(chain.from_iterable(won)) == list(range(20))
    winners = values(tmp_path)
    assert all(winners[number] == writer for writer, mine in enumerate(won) for number in mine)
