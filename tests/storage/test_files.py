import errno
import json
import os
import threading
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.errors import StoreError
from hpcelastic.storage import files
from hpcelastic.storage.mounts import Mount
from tests.storage.forking import in_processes


def failing(code: int) -> Callable[..., Any]:
    def fail(*args: Any, **more: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def after(call: Callable[..., Any], code: int) -> Callable[..., Any]:
    """Return a ``call`` that the server executes while its reply is lost. The repeated request is refused with
    ``code``."""

    def fail(*args: Any, **more: Any) -> Any:
        call(*args, **more)
        raise OSError(code, os.strerror(code))

    return fail


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


# Publications under a new name


def test_a_new_file_is_complete_private_and_the_only_one(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert files.publish_new(tmp_path / "a", b"content")
    finally:
        os.umask(before)
    assert (tmp_path / "a").read_bytes() == b"content"
    assert mode(tmp_path / "a") == 0o600
    assert (tmp_path / "a").stat().st_nlink == 1
    assert os.listdir(tmp_path) == ["a"]


def test_a_taken_name_keeps_its_content(tmp_path: Path) -> None:
    assert files.publish_new(tmp_path / "a", b"first")
    assert not files.publish_new(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a"]


def no_links(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "link", failing(errno.EPERM))


def with_links(patch: pytest.MonkeyPatch) -> None:
    pass


@pytest.mark.parametrize("filesystem", [with_links, no_links], ids=["hard links", "symbolic links"])
def test_exactly_one_of_racing_processes_gets_each_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filesystem: Callable[[pytest.MonkeyPatch], None]
) -> None:
    filesystem(monkeypatch)
    names = [f"v{i}" for i in range(40)]

    def race(racer: int) -> list[str]:
        return [name for name in names if files.publish_new(tmp_path / name, content(racer, name))]

    won = in_processes(4, race)
    assert sorted(chain.from_iterable(won)) == sorted(names)
    for racer, mine in enumerate(won):
        for name in mine:
            assert files.read(tmp_path / name) == content(racer, name)
    assert sorted(files.names(tmp_path)) == sorted(names)


@pytest.mark.parametrize("filesystem", [with_links, no_links], ids=["hard links", "symbolic links"])
def test_exactly_one_of_racing_threads_gets_each_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filesystem: Callable[[pytest.MonkeyPatch], None]
) -> None:
    filesystem(monkeypatch)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    names, won = [f"v{i}" for i in range(20)], []
    gate = threading.Barrier(8)

    def race(racer: int) -> None:
        gate.wait()
        won.extend((name, racer) for name in names if files.publish_new(tmp_path / name, content(racer, name)))

    threads = [threading.Thread(target=race, args=(racer,)) for racer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(name for name, _ in won) == sorted(names)
    for name, racer in won:
        assert files.read(tmp_path / name) == content(racer, name)


def content(racer: int, name: str) -> bytes:
    return f"{name} of {racer}".encode() * 1000


NO_LINK_CODES = [errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK]


@pytest.mark.parametrize("code", NO_LINK_CODES, ids=errno.errorcode.get)
def test_without_hard_links_symbolic_links_are_exclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", failing(code))
    assert files.publish_new(tmp_path / "a", b"first")
    assert not files.publish_new(tmp_path / "a", b"second")
    assert files.read(tmp_path / "a") == b"first"
    assert files.names(tmp_path) == ["a"]
    assert len(os.listdir(tmp_path)) == 2, "the draft of the loser is removed, and that of the winner is kept"


@pytest.mark.parametrize("taken_by", ["file", "link"])
def test_hosts_with_and_without_hard_links_exclude_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_by: str
) -> None:
    with monkeypatch.context() as patch:
        if taken_by == "link":
            no_links(patch)
        assert files.publish_new(tmp_path / "a", b"first")
    if taken_by == "file":
        no_links(monkeypatch)
    assert not files.publish_new(tmp_path / "a", b"second")
    assert files.read(tmp_path / "a") == b"first"


def test_a_filesystem_without_links_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_links(monkeypatch)
    monkeypatch.setattr(os, "symlink", failing(errno.EPERM))
    with pytest.raises(StoreError, match="neither hard nor symbolic links; use another"):
        files.publish_new(tmp_path / "a", b"x")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("code", [errno.EEXIST, errno.EIO, errno.ESTALE], ids=errno.errorcode.get)
def test_a_link_that_fails_after_it_succeeded_has_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", after(os.link, code))
    assert files.publish_new(tmp_path / "a", b"mine")
    assert os.listdir(tmp_path) == ["a"]
    assert files.read(tmp_path / "a") == b"mine"


@pytest.mark.parametrize("code", [errno.EEXIST, errno.EIO], ids=errno.errorcode.get)
def test_a_symbolic_link_that_fails_after_it_succeeded_has_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    no_links(monkeypatch)
    monkeypatch.setattr(os, "symlink", after(os.symlink, code))
    assert files.publish_new(tmp_path / "a", b"mine")
    assert files.read(tmp_path / "a") == b"mine", "its draft is kept"


def test_a_symbolic_link_with_an_unknown_outcome_keeps_its_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may exist, or the server may create it later. Then it must show something."""
    no_links(monkeypatch)
    monkeypatch.setattr(os, "symlink", after(os.symlink, errno.ETIMEDOUT))
    monkeypatch.setattr(os, "readlink", failing(errno.ETIMEDOUT))
    with pytest.raises(StoreError):
        files.publish_new(tmp_path / "a", b"mine")
    assert files.read(tmp_path / "a") == b"mine"


def test_a_failed_link_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EIO))
    with pytest.raises(StoreError, match="Input/output error"):
        files.publish_new(tmp_path / "a", b"x")
    assert os.listdir(tmp_path) == []


def passing(call: Callable[..., Any], code: int, times: int = 1) -> Callable[..., Any]:
    """Return a ``call`` that is refused with ``code`` so many ``times`` before it has an effect."""
    left = [code] * times

    def attempt(*args: Any, **more: Any) -> Any:
        if left:
            failing(left.pop())()
        return call(*args, **more)

    return attempt


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EINTR, errno.EAGAIN], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["open", "write", "fsync", "close", "link", "listdir"])
def test_a_publication_survives_a_transient_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    monkeypatch.setattr(os, call, passing(getattr(os, call), code))
    assert files.publish_new(tmp_path / "a", b"mine")
    assert files.names(tmp_path) == ["a"]
    assert files.read(tmp_path / "a") == b"mine"


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EINTR], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["open", "write", "fsync", "close", "replace"])
def test_a_replacement_survives_a_transient_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    files.publish(tmp_path / "a", b"old")
    monkeypatch.setattr(os, call, passing(getattr(os, call), code))
    files.publish(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_draft_whose_creation_failed_after_its_success_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, lost = os.open, []

    def lose_the_first(path: Path, flags: int, *args: int) -> int:
        fd = opened(path, flags, *args)
        if flags & os.O_CREAT and not lost:
            lost.append(path)
            os.close(fd)
            failing(errno.EEXIST)()
        return fd

    monkeypatch.setattr(os, "open", lose_the_first)
    assert files.publish_new(tmp_path / "a", b"mine")
    assert lost and os.listdir(tmp_path) == ["a"]


def test_data_written_before_a_failed_sync_is_never_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    fsync = os.fsync

    def lose_the_first(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        if len(synced) == 1:
            failing(errno.EIO)()
        fsync(fd)

    monkeypatch.setattr(os, "fsync", lose_the_first)
    files.publish(tmp_path / "a", b"x")
    assert synced[0] != synced[1], "the pages of the first file may be lost, even if a second sync succeeds"


def test_a_directory_whose_sync_failed_is_not_synced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, failed = os.fsync, []

    def lose_names(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            failed.append(fd)
            failing(errno.EIO)()
        fsync(fd)

    monkeypatch.setattr(os, "fsync", lose_names)
    with pytest.raises(StoreError, match="Input/output error"):
        files.publish_new(tmp_path / "a", b"x")
    assert len(failed) == 1


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT, errno.ESTALE], ids=errno.errorcode.get)
def test_a_replacement_that_fails_after_it_succeeded_has_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "replace", after(os.replace, code))
    files.publish(tmp_path / "a", b"mine")
    assert os.listdir(tmp_path) == ["a"]
    assert files.read(tmp_path / "a") == b"mine"


@pytest.mark.parametrize("before", [b"old", None], ids=["old content", "no name"])
def test_a_replacement_that_the_kernel_has_repeated_is_seen_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes | None
) -> None:
    read, stale = files.read, [before] * 3
    monkeypatch.setattr(os, "replace", after(os.replace, errno.ENOENT))
    monkeypatch.setattr(files, "read", lambda path: stale.pop() if stale else read(path))
    files.publish(tmp_path / "a", b"mine")
    assert (tmp_path / "a").read_bytes() == b"mine" and not stale


def test_a_draft_that_was_removed_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "NEGATIVE_CACHE_TIMEOUT", 0.05)
    monkeypatch.setattr(os, "replace", lambda draft, path: os.unlink(draft) or failing(errno.ENOENT)())
    with pytest.raises(StoreError, match="No such file or directory"):
        files.publish(tmp_path / "a", b"mine")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT, errno.ESTALE], ids=errno.errorcode.get)
def test_a_removal_that_fails_after_it_succeeded_has_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (tmp_path / "a").touch()
    monkeypatch.setattr(os, "unlink", after(os.unlink, code))
    files.remove(tmp_path / "a")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("code", [errno.EIO, errno.EEXIST, errno.ESTALE], ids=errno.errorcode.get)
def test_a_directory_whose_creation_failed_after_its_success_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "mkdir", after(os.mkdir, code))
    files.make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_directory_of_a_run_is_not_created_if_that_of_the_run_is_missing(tmp_path: Path) -> None:
    run = tmp_path / "mount" / "runs" / "r"
    for directory in (run, run / "a", run / "a" / "b"):
        with pytest.raises(StoreError, match="is mounted"):
            files.make_directory(directory, within=run)
    assert os.listdir(tmp_path) == []
    run.parent.mkdir(parents=True)  # also if the run is in the mount point itself
    for directory in (run / "a", run / "a" / "b"):
        with pytest.raises(StoreError, match="is mounted"):
            files.make_directory(directory, within=run)
    assert os.listdir(run.parent) == []
    files.make_directory(run)
    files.make_directory(run / "a" / "b", within=run)
    assert (run / "a" / "b").is_dir()


def test_a_lost_race_is_reported_after_any_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def overtaken(draft: Path, path: Path) -> None:
        path.write_bytes(b"another's")
        failing(errno.EIO)()

    monkeypatch.setattr(os, "link", overtaken)
    assert not files.publish_new(tmp_path / "a", b"mine")
    assert (tmp_path / "a").read_bytes() == b"another's"


def test_the_link_count_of_the_draft_shows_a_name_that_is_not_visible_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [name for name in listdir(path) if name not in ("a", "b")])
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", after(os.link, errno.EEXIST))
        assert files.publish_new(tmp_path / "a", b"mine")
    (tmp_path / "b").write_bytes(b"another's")
    assert not files.publish_new(tmp_path / "b", b"mine")


def test_the_error_names_a_draft_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def swept(draft: Path, path: Path) -> None:
        os.unlink(draft)
        link(draft, path)

    monkeypatch.setattr(os, "link", swept)
    with pytest.raises(StoreError, match="its draft was removed"):
        files.publish_new(tmp_path / "a", b"mine")
    assert os.listdir(tmp_path) == []


def test_a_symbolic_link_to_a_removed_draft_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_links(monkeypatch)
    symlink = os.symlink

    def swept(name: str, path: Path) -> None:
        os.unlink(path.with_name(name))
        symlink(name, path)

    monkeypatch.setattr(os, "symlink", swept)
    with pytest.raises(StoreError, match="its draft was removed"):
        files.publish_new(tmp_path / "a", b"mine")
    assert os.listdir(tmp_path) == []


def test_a_draft_that_cannot_be_removed_changes_no_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "unlink", failing(errno.EIO))
    assert files.publish_new(tmp_path / "a", b"first")
    assert not files.publish_new(tmp_path / "a", b"second")
    assert files.names(tmp_path) == ["a"]


def test_content_and_name_are_durable_before_the_call_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    for name in ("write", "fsync", "link", "replace"):
        call = getattr(os, name)

        def traced(*args: Any, name: str = name, call: Callable[..., Any] = call) -> Any:
            synced = name == "fsync" and os.path.isdir(f"/proc/self/fd/{args[0]}")
            done.append("fsync directory" if synced else name)
            return call(*args)

        monkeypatch.setattr(os, name, traced)
    files.publish_new(tmp_path / "a", b"x")
    assert done == ["write", "fsync", "link", "fsync directory"]
    done.clear()
    files.publish(tmp_path / "a", b"y")
    assert done == ["write", "fsync", "replace", "fsync directory"]
    done.clear()
    files.publish(tmp_path / "a", b"z", durable=False)
    assert done == ["write", "replace"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:3]))
    assert files.publish_new(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


# Replacements


def test_a_replacement_is_complete_and_private_and_leaves_no_draft(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files.publish(tmp_path / "a", b"old")
        files.publish(tmp_path / "a", b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "a").read_bytes() == b"new"
    assert mode(tmp_path / "a") == 0o600
    assert os.listdir(tmp_path) == ["a"]


def test_a_reader_never_sees_a_torn_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    path = tmp_path / "a"
    files.publish(path, bytes([0]) * 50_000)
    seen, done = set(), threading.Event()

    def watch() -> None:
        while not done.is_set():
            data = files.read(path)
            seen.add("missing" if data is None else "whole" if data == data[:1] * 50_000 else "torn")

    reader = threading.Thread(target=watch)
    reader.start()
    for value in range(200):
        files.publish(path, bytes([value]) * 50_000)
    done.set()
    reader.join()
    assert seen == {"whole"}


@pytest.mark.parametrize("call", ["write", "fsync", "close", "replace"])
def test_a_failed_replacement_keeps_the_old_content_and_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    files.publish(tmp_path / "a", b"old")
    with monkeypatch.context() as patch:
        broken = after(os.close, errno.EDQUOT) if call == "close" else failing(errno.EDQUOT)
        patch.setattr(os, call, broken)
        with pytest.raises(StoreError, match="quota"):
            files.publish(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


# Reads


def test_a_missing_file_is_read_as_none(tmp_path: Path) -> None:
    assert files.read(tmp_path / "a") is None
    assert files.read_json(tmp_path / "a") is None
    assert files.read(tmp_path / "missing" / "a") is None
    assert files.names(tmp_path / "missing") == []


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b'{"a":', b"\xff\xfe", b"null null", b"\0" * 64],
    ids=["empty", "brace", "incomplete", "no utf-8", "twice", "zeros"],
)
def test_damaged_json_names_the_file_and_the_remedy(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(StoreError, match=r"a\.json: not JSON .*restore or remove it"):
        files.read_json(tmp_path / "a.json")


def test_our_json_is_one_line_of_ascii(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, "ü\n\u2028\ud800"]}
    data = files.to_json(value)
    assert data.count(b"\n") == 1 and data.endswith(b"\n") and data.isascii()
    assert json.loads(data) == value


@pytest.mark.parametrize(("misses", "fine"), [(1, True), (4, True), (5, False)])
def test_a_file_that_is_replaced_during_a_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, misses: int, fine: bool
) -> None:
    (tmp_path / "a").write_bytes(b"7")
    read_bytes, left = Path.read_bytes, [errno.ESTALE] * misses

    def stale(path: Path) -> bytes:
        if left:
            failing(left.pop())()
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", stale)
    if fine:
        assert files.read(tmp_path / "a") == b"7"
    else:
        with pytest.raises(StoreError, match=r"[Ss]tale.*check that the shared filesystem is mounted"):
            files.read_json(tmp_path / "a")


def test_drafts_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / ".draft-a.1234").touch()
    (tmp_path / "a").touch()
    assert files.names(tmp_path) == ["a"]


# Directories


def test_a_new_directory_and_its_parents_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files.make_directory(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert [mode(path) for path in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c")] == [0o700] * 3


def test_an_existing_directory_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    files.make_directory(tmp_path / "a")
    assert mode(tmp_path / "a") == 0o755


def test_processes_may_make_the_same_directories_at_once(tmp_path: Path) -> None:
    def make(_: int) -> bool:
        for i in range(30):
            files.make_directory(tmp_path / f"{i}" / "b" / "c")
        return True

    assert in_processes(4, make) == [True] * 4


@pytest.mark.parametrize(
    ("misses", "fine"), [pytest.param(3, True, id="a short time"), pytest.param(1000, False, id="for ever")]
)
def test_the_wait_for_a_directory_that_this_client_has_cached_as_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, misses: int, fine: bool
) -> None:
    slept: list[float] = []
    (tmp_path / "a").mkdir()
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(os, "lstat", passing(os.lstat, errno.ENOENT, misses))
    monkeypatch.setattr(Path, "is_dir", lambda path: False)
    if fine:
        files.make_directory(tmp_path / "a")
        assert len(slept) == misses - 1
    else:
        with pytest.raises(StoreError, match=r"another node has created it, and this node can't see it; .*is mounted"):
            files.make_directory(tmp_path / "a")
        assert files.NEGATIVE_CACHE_TIMEOUT <= sum(slept) <= files.NEGATIVE_CACHE_TIMEOUT + 1


def test_the_error_names_a_file_in_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(StoreError, match="File exists; a file is in the way: use another directory"):
        files.make_directory(tmp_path / "a")


@pytest.mark.parametrize(("code", "misses"), [(errno.ESTALE, 4), (errno.EIO, 2), (errno.EINTR, 4)])
def test_a_listing_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, misses: int) -> None:
    (tmp_path / "a").touch()
    monkeypatch.setattr(os, "listdir", passing(os.listdir, code, misses))
    assert files.names(tmp_path) == ["a"]


def test_a_directory_that_cannot_be_synced_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def refuse_directories(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            failing(errno.EINVAL)()
        fsync(fd)

    monkeypatch.setattr(os, "fsync", refuse_directories)
    assert files.publish_new(tmp_path / "a", b"x")


# Errors

REFUSALS = [
    pytest.param(errno.ENOSPC, "the filesystem is full: free some space", id="ENOSPC"),
    pytest.param(errno.EDQUOT, "quota is used up: free some space", id="EDQUOT"),
    pytest.param(errno.EACCES, "use a directory that belongs to you on every node", id="EACCES"),
    pytest.param(errno.EPERM, "use a directory that belongs to you on every node", id="EPERM"),
    pytest.param(errno.EROFS, "mounted read-only: mount it for writing again", id="EROFS"),
    pytest.param(errno.ENOTDIR, "a part of the path is a file: use another directory", id="ENOTDIR"),
    pytest.param(errno.EIO, "check that the shared filesystem is mounted and answers on this node", id="EIO"),
    pytest.param(errno.ENOTCONN, "check that the shared filesystem is mounted", id="ENOTCONN"),
]

OPERATIONS = [
    pytest.param("open", lambda path: files.publish_new(path, b"x"), id="publish_new"),
    pytest.param("open", lambda path: files.publish(path, b"x"), id="publish"),
    pytest.param("fsync", lambda path: files.publish(path, b"x"), id="fsync"),
    pytest.param("listdir", lambda path: files.names(path), id="names"),
    pytest.param("mkdir", lambda path: files.make_directory(path), id="make_directory"),
]


@pytest.mark.parametrize(("code", "remedy"), REFUSALS)
@pytest.mark.parametrize(("call", "operation"), OPERATIONS)
def test_a_refusal_has_file_reason_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str, call: str, operation: Callable[[Path], Any]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(code))
        with pytest.raises(StoreError) as caught:
            operation(tmp_path / "name")
    assert str(caught.value).startswith(f"{tmp_path / 'name'}: {os.strerror(code)}; ")
    assert remedy in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_file_in_the_path_is_explained_by_the_system_itself(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    inside = tmp_path / "file" / "a"
    for operation in (
        lambda: files.make_directory(inside),
        lambda: files.make_directory(inside / "b"),
        lambda: files.publish_new(inside, b""),
        lambda: files.read_json(inside),
        lambda: files.names(inside),
    ):
        with pytest.raises(StoreError, match="Not a directory; a part of the path is a file"):
            operation()


def test_a_replacement_with_a_lost_reply_that_is_not_visible_yet_has_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move, path = os.replace, tmp_path / "a"

    def lose_the_reply(draft: Path, target: Path) -> None:
        move(draft, target)
        raise OSError(errno.EIO, "lost")

    attempts = iter([lose_the_reply, move])
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *names: next(attempts)(*names))
        patch.setattr(files, "read", lambda _: None)  # this client caches that the name is absent
        files.publish(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(
    ("publish", "steps"),
    [
        pytest.param(files.publish, ["replace", "utime"], id="replacing"),
        pytest.param(files.publish_new, ["link", "unlink", "utime"], id="exclusive"),
    ],
)
def test_the_last_change_gives_the_directory_a_new_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publish: Callable[[Path, bytes], object], steps: list[str]
) -> None:
    taken: list[str] = []
    for name in ("replace", "link", "unlink", "utime"):
        call = getattr(os, name)
        record = lambda *args, name=name, call=call, **more: (taken.append(name), call(*args, **more))  # noqa: E731  # short
        monkeypatch.setattr(os, name, record)
    publish(tmp_path / "a", b"new")
    assert taken == steps


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO], ids=errno.errorcode.get)
def test_a_transient_error_of_the_check_does_not_remove_the_symbolic_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    no_links(monkeypatch)
    open_file, left = os.open, [code]

    def flaky(path: Path, flags: int, *mode: int) -> int:
        if flags == os.O_RDONLY and left:
            raise OSError(left.pop(), "passes")
        return open_file(path, flags, *mode)

    monkeypatch.setattr(os, "open", flaky)
    assert files.publish_new(tmp_path / "a", b"mine")
    assert not left and (tmp_path / "a").read_bytes() == b"mine"


def test_a_lost_reply_and_a_failed_check_leave_no_dangling_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_links(monkeypatch)
    readlink, left = os.readlink, [errno.EIO]

    def flaky(path: Path) -> str:
        if left:
            raise OSError(left.pop(), "passes")
        return readlink(path)

    monkeypatch.setattr(os, "symlink", after(os.symlink, errno.EIO))
    monkeypatch.setattr(os, "readlink", flaky)
    assert files.publish_new(tmp_path / "a", b"mine")
    assert not left and (tmp_path / "a").read_bytes() == b"mine"


def test_after_a_lost_reply_the_content_of_the_name_decides_despite_a_stale_link_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, unseen = files.read, [None, None]
    monkeypatch.setattr(files, "_link_count", lambda _: 1)  # a cached value from before the link
    monkeypatch.setattr(files, "read", lambda path: unseen.pop() if unseen else read(path))
    monkeypatch.setattr(os, "link", after(os.link, errno.EIO))
    assert files.publish_new(tmp_path / "a", b"mine")
    assert not unseen


@pytest.mark.parametrize("kind, looks", [("ext4", 0), ("nfs", 3), ("nfs4", 3)])
def test_on_nfs_a_touch_waits_until_the_servers_clock_has_advanced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, looks: int
) -> None:
    clock = [7, 6, 5, 5]
    monkeypatch.setattr(files, "mount_of", lambda path: Mount(kind, "", str(path)))
    monkeypatch.setattr(files, "_ctime_ns", lambda path: clock.pop())
    files.touch_directory(tmp_path)
    assert 4 - len(clock) == looks


@pytest.mark.parametrize("kind, touched", [("ext4", True), ("nfs4", True), ("lustre", False), ("gpfs", False)])
def test_a_directory_is_touched_unless_its_listings_are_coherent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, touched: bool
) -> None:
    monkeypatch.setattr(files, "mount_of", lambda path: Mount(kind, "", str(path)))
    os.utime(tmp_path, ns=(1, 1))
    files.touch_directory(tmp_path)
    assert (tmp_path.stat().st_mtime_ns != 1) == touched


def test_the_wait_for_the_servers_clock_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []
    monkeypatch.setattr(files, "mount_of", lambda path: Mount("nfs", "", str(path)))
    monkeypatch.setattr(files, "_ctime_ns", looked.append)
    files.touch_directory(tmp_path)
    assert 2 < len(looked) < 10
