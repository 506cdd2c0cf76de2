"""The lying filesystem tells exactly the lies that it is told to tell."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.filesystems.availability import require
from tests.filesystems.lies import ALL, Fault, Lies, decode, encode
from tests.filesystems.mounts import FaultyMount, faulty_mounts, why_no_fuse

pytestmark = pytest.mark.nightly

LONG = 60.0
"""Seconds for which a cache lasts longer than any test."""


@pytest.fixture(scope="module", params=["shared", "local"])
def mounts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[FaultyMount]]:
    require(why_no_fuse())
    backing = tmp_path_factory.mktemp("backing")
    with faulty_mounts(backing, shared_locks=request.param == "shared") as made:
        yield list(made)


@pytest.fixture
def ours(mounts: list[FaultyMount], request: pytest.FixtureRequest) -> Iterator[tuple[FaultyMount, Path, Path]]:
    """The first mount, and a new folder as it and as the other one show it."""
    mount, other = mounts
    mount.tell(Lies())
    name = f"{abs(hash(request.node.name))}"
    (other.client.directory / name).mkdir()
    yield mount, mount.client.directory / name, other.client.directory / name
    mount.tell(Lies())


Ours = tuple[FaultyMount, Path, Path]


def test_without_lies_all_is_seen_at_once(ours: Ours) -> None:
    _, here, there = ours
    assert not (here / "x").exists()
    (there / "x").write_text("one")
    assert (here / "x").read_text() == "one" and os.listdir(here) == ["x"]
    (there / "y").write_text("a longer one")
    os.replace(there / "y", there / "x")
    assert (here / "x").read_text() == "a longer one" and (here / "x").stat().st_size == 12
    os.link(there / "x", there / "z")
    assert (here / "z").stat().st_nlink == 2 and (here / "z").samefile(here / "x")
    (there / "x").unlink()
    assert sorted(os.listdir(here)) == ["z"] and not (here / "x").exists()


def locked(lock: Callable[[int, int], None], here: Path, there: Path) -> bool:
    """Return whether a lock that is held there excludes this process."""
    with open(there / "lock", "w") as held, open(here / "lock", "w") as wanted:
        lock(held.fileno(), fcntl.LOCK_EX)
        try:
            lock(wanted.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@pytest.mark.parametrize("lock", [pytest.param(fcntl.flock, id="flock"), pytest.param(fcntl.lockf, id="POSIX")])
def test_locks_exclude_other_mounts_where_they_are_shared(ours: Ours, lock: Callable[[int, int], None]) -> None:
    mount, here, there = ours
    assert locked(lock, here, there) == mount.shared_locks
    assert not locked(lambda fd, how: lock(fd, how) if how & fcntl.LOCK_NB else None, here, there), "it was released"


def test_flock_excludes_within_a_mount(ours: Ours) -> None:
    _, here, _ = ours
    assert locked(fcntl.flock, here, here)


def test_an_absent_name_stays_absent_to_stat_and_open_but_is_listed(ours: Ours) -> None:
    mount, here, there = ours
    mount.tell(Lies(negative=LONG))
    assert not (here / "x").exists()
    (there / "x").touch()
    assert not (here / "x").exists() and os.listdir(here) == ["x"]
    with pytest.raises(FileNotFoundError):
        (here / "x").read_text()


def test_attributes_are_old(ours: Ours) -> None:
    mount, here, there = ours
    mount.tell(Lies(attributes=LONG, entries=LONG))
    (there / "x").write_text("one")
    assert (here / "x").stat().st_size == 3
    (there / "x").write_text("longer")
    assert (here / "x").stat().st_size == 3


def test_a_replaced_file_is_old_and_whole_until_we_change_it_ourselves(ours: Ours) -> None:
    mount, here, there = ours
    mount.tell(Lies(data=LONG))
    (there / "x").write_text("one")
    assert (here / "x").read_text() == "one"
    (there / "y").write_text("a longer one")
    os.replace(there / "y", there / "x")
    assert (here / "x").read_text() == "one"
    (here / "z").write_text("ours")
    os.replace(here / "z", here / "x")
    assert (here / "x").read_text() == "ours" == (there / "x").read_text()


def test_pages_are_kept_while_attributes_are_old(ours: Ours) -> None:
    mount, here, there = ours
    mount.tell(Lies(pages=True, attributes=LONG, entries=LONG))
    (there / "x").write_text("one")
    assert [(here / "x").read_text() for _ in range(2)] == ["one"] * 2  # what is opened again is kept
    (there / "x").write_text("two")
    assert (here / "x").read_text() == "one"


def test_a_listing_is_late_but_for_what_we_change_ourselves(ours: Ours) -> None:
    mount, here, there = ours
    mount.tell(Lies(listings=LONG))
    assert os.listdir(here) == []
    (there / "x").touch()
    assert os.listdir(here) == [] and (here / "x").exists()
    (here / "y").touch()
    assert sorted(os.listdir(here)) == ["x", "y"]


NUMBERS = ("ESTALE", "EIO", "ENOSPC", "EDQUOT", "EACCES", "EROFS", "ENOLCK", "EPERM")


@pytest.mark.parametrize("error", NUMBERS)
def test_an_operation_answers_any_error_and_does_nothing(ours: Ours, error: str) -> None:
    mount, here, there = ours
    mount.fail(Fault(("mkdir",), error))
    with pytest.raises(OSError) as raised:
        (here / "d").mkdir()
    assert raised.value.errno == getattr(errno, error) and os.listdir(there) == []


def test_a_lost_reply_is_an_error_of_what_was_done(ours: Ours) -> None:
    mount, here, there = ours
    (here / "x").touch()
    mount.fail(Fault(("link",), "EIO", done=True))
    with pytest.raises(OSError, match="Input/output error"):
        os.link(here / "x", here / "y")
    assert sorted(os.listdir(there)) == ["x", "y"]


def test_a_fault_befalls_only_its_paths_and_only_so_often(ours: Ours) -> None:
    mount, here, _ = ours
    mount.fail(Fault(("mkdir",), "EIO", pattern="*/bad-*"), Fault(("rmdir",), "EIO", probability=0.0))
    (here / "good").mkdir()
    with pytest.raises(OSError):
        (here / "bad-one").mkdir()
    (here / "good").rmdir()


def test_what_hangs_goes_on_when_it_is_released(ours: Ours) -> None:
    mount, here, _ = ours
    (here / "x").write_text("data")
    mount.fail(Fault(ALL, hang=True))
    with reading(here / "x") as reader:
        time.sleep(0.1)
        assert reader.poll() is None
        mount.fail()
        assert reader.communicate(timeout=30)[0] == b"data"


def test_who_hangs_can_be_killed(ours: Ours) -> None:
    mount, here, _ = ours
    (here / "x").touch()
    mount.fail(Fault(ALL, hang=True))
    with reading(here / "x") as reader:
        time.sleep(0.1)
        reader.kill()
        assert reader.wait(30) == -9


def test_an_unmounted_client_lets_all_go_and_can_mount_again(ours: Ours) -> None:
    mount, here, _ = ours
    (here / "x").write_text("data")
    mount.fail(Fault(ALL, hang=True))
    with reading(here / "x") as reader:
        time.sleep(0.1)
        mount.unmount()
        assert reader.wait(30) == 1
    assert not here.exists()
    mount.tell(Lies())
    mount.mount()
    assert (here / "x").read_text() == "data"


def reading(path: Path) -> subprocess.Popen[bytes]:
    """A process that prints the file."""
    return subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def test_nothing_stays_mounted_when_a_test_fails(tmp_path: Path) -> None:
    require(why_no_fuse())
    with pytest.raises(ZeroDivisionError), faulty_mounts(tmp_path) as mounts:
        where = mounts[0].client.directory
        mounts[0].fail(Fault(ALL, hang=True))
        raise ZeroDivisionError
    assert not where.exists() and str(where) not in Path("/proc/self/mountinfo").read_text()


def test_lies_travel_as_json() -> None:
    lies = Lies(5, 30, 5, 5, True, 1, (Fault(("link",), "EIO", 0.1, True, True, "*.json"), Fault(ALL, hang=True)))
    assert decode(encode(lies)) == lies
