import errno
import os
import sys
from pathlib import Path
from typing import Any

import filelock
import pytest

from hpcelastic.storage.locks import BoundedLock
from hpcelastic.storage.register import Register
from tests.storage.forking import lock_held

TIMEOUT = 0.05


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return how long each attempt at a lock was willing to wait."""
    timeouts: list[float] = []
    acquire = filelock.BaseFileLock.acquire

    def traced(self: Any, timeout: float, **more: Any) -> Any:
        timeouts.append(timeout)
        return acquire(self, timeout=timeout, **more)

    monkeypatch.setattr(filelock.BaseFileLock, "acquire", traced)
    return timeouts


def refusing(patch: pytest.MonkeyPatch, call: str, error: Exception) -> list[int]:
    """Make ``call`` of every lock fail. Return the list of its calls."""
    calls: list[int] = []

    def refuse(self: Any, **more: Any) -> Any:
        calls.append(1)
        raise error

    patch.setattr(filelock.BaseFileLock, call, refuse)
    return calls


def test_without_the_package_there_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is imported late, and the environment may have been removed since the start."""
    monkeypatch.setitem(sys.modules, "filelock", None)
    register = Register(tmp_path, "a")
    with register.lock():
        assert register.commit(0, 1)


def test_a_held_lock_excludes_others(tmp_path: Path, asked: list[float]) -> None:
    with BoundedLock(tmp_path, TIMEOUT).hold() as first, BoundedLock(tmp_path, TIMEOUT).hold() as second:
        assert (first, second) == (True, False)
    with BoundedLock(tmp_path, TIMEOUT).hold() as again:
        assert again


def test_a_missing_directory_is_not_created(tmp_path: Path) -> None:
    with BoundedLock(tmp_path / "gone" / "register").hold() as held:
        assert not held
    assert os.listdir(tmp_path) == []


def test_the_wait_for_a_frozen_holder_occurs_once(tmp_path: Path, asked: list[float]) -> None:
    lock = BoundedLock(tmp_path, TIMEOUT)

    def try_often(count: int) -> list[bool]:
        found = []
        for _ in range(count):
            with lock.hold() as held:
                found.append(held)
        return found

    with lock_held(tmp_path / "lock"):
        assert try_often(4) == [False] * 4
        assert asked == [TIMEOUT, 0.0, 0.0, 0.0]
    assert try_often(2) == [True, True], "the kernel has released a dead holder's lock"
    assert asked[4:] == [0.0, TIMEOUT], "it waits again"


def test_a_held_lock_delays_the_commits_of_a_writer_once(tmp_path: Path, asked: list[float]) -> None:
    writer = Register(tmp_path, "a", lock_timeout=TIMEOUT)
    with lock_held(tmp_path / "lock"):
        assert [writer.update(lambda old: (old or 0) + 1).value for _ in range(3)] == [1, 2, 3]
    assert asked == [TIMEOUT, 0.0, 0.0]


def test_a_lock_file_that_an_older_version_left_is_ignored(tmp_path: Path, asked: list[float]) -> None:
    marker = tmp_path / "lock.soft"
    marker.write_text("1\nanother-host\n")
    with BoundedLock(tmp_path, TIMEOUT).hold() as held:
        assert held
    assert marker.read_text() == "1\nanother-host\n"


def test_a_lock_that_is_a_directory_is_tried_once(tmp_path: Path, asked: list[float]) -> None:
    (tmp_path / "lock").mkdir()
    writer = Register(tmp_path, "a", lock_timeout=TIMEOUT)
    assert [writer.update(lambda old: (old or 0) + 1).value for _ in range(3)] == [1, 2, 3]
    assert asked == [TIMEOUT]


FINAL = [
    pytest.param(NotImplementedError(), id="not implemented"),
    *(
        pytest.param(OSError(getattr(errno, name), name), id=name)
        for name in ["ENOLCK", "ENOSYS", "EOPNOTSUPP", "EACCES", "EPERM", "EROFS", "EIO", "EINVAL"]
    ),
]
PASSING = [
    pytest.param(OSError(getattr(errno, name), name), id=name)
    for name in ["ENOENT", "ESTALE", "ENOSPC", "EDQUOT", "EMFILE", "EINTR"]
]


@pytest.mark.parametrize("error", FINAL)
def test_a_mount_without_locks_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    calls = refusing(monkeypatch, "acquire", error)
    writer = Register(tmp_path, "a", lock_timeout=TIMEOUT)
    assert [writer.update(lambda old: (old or 0) + 1).value for _ in range(3)] == [1, 2, 3]
    assert len(calls) == 1


@pytest.mark.parametrize("error", PASSING)
def test_a_transient_error_affects_one_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    lock = BoundedLock(tmp_path, TIMEOUT)
    with monkeypatch.context() as patch:
        refusing(patch, "acquire", error)
        with lock.hold() as held:
            assert not held
    with lock.hold() as held:
        assert held


def test_a_kernel_without_flock_has_no_lock_file_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", missing)
    assert Register(tmp_path, "a", lock_timeout=TIMEOUT).update(lambda _: 1).number == 1
    with BoundedLock(tmp_path, TIMEOUT).hold() as held:
        assert not held


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.ENOENT], ids=errno.errorcode.get)
def test_a_failed_release_loses_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    calls = []

    def refuse(self: Any, *args: Any, **more: Any) -> None:
        calls.append(code)
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(filelock.BaseFileLock, "release", refuse)
        assert Register(tmp_path, "a", lock_timeout=TIMEOUT).update(lambda _: "kept").number == 1
        assert calls
    assert Register(tmp_path, "b").read().value == "kept"


def test_an_error_under_the_lock_is_not_hidden_and_releases_it(tmp_path: Path) -> None:
    lock = BoundedLock(tmp_path, TIMEOUT)
    with pytest.raises(KeyError), lock.hold():
        raise KeyError("mine")
    with BoundedLock(tmp_path, TIMEOUT).hold() as held:
        assert held
