import errno
import os
import stat
from pathlib import Path

import pytest

from hpcelastic.errors import StoreError
from hpcelastic.training import published


def test_a_file_appears_whole_at_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with published(path) as file:
        file.write(b"{}")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"{}"
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_block_left_by_an_exception_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), published(path) as file:
        file.write(b"new")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["result.json"]


def test_the_bytes_are_synced_before_the_name_is_given_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, rename = os.fsync, Path.replace

    def record_sync(descriptor: int) -> None:
        calls.append("sync directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        sync(descriptor)

    def record_rename(self: Path, target: Path) -> Path:
        calls.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "replace", record_rename)
    with published(tmp_path / "a") as file:
        file.write(b"x")
    assert calls == ["sync file", "rename", "sync directory"]


def test_two_writers_at_once_leave_the_whole_file_of_one(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with published(path) as first:
        first.write(b"first, ")
        with published(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
        first.write(b"at length")
    assert path.read_bytes() == b"first, at length"


def test_the_file_has_the_rights_that_any_new_file_has(tmp_path: Path) -> None:
    with published(tmp_path / "a"):
        pass
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.ENOSPC, "free some space"), (errno.EDQUOT, "quota"), (errno.EROFS, "may write"), (errno.EIO, "filesystem")],
)
def test_a_refusal_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StoreError, match=f"{os.strerror(code)}.*{remedy}"), published(tmp_path / "a"):
        pass
    assert os.listdir(tmp_path) == []


def test_a_directory_that_is_missing_is_explained(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="make the directory first"), published(tmp_path / "missing" / "a"):
        pass


def test_a_directory_that_cannot_be_synced_is_good_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def refuse_directories(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_directories)
    with published(tmp_path / "a") as file:
        file.write(b"x")
    assert (tmp_path / "a").read_bytes() == b"x"
