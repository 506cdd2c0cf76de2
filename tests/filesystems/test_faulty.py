"""The faulty filesystem has exactly the anomalies that are set."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.filesystems.anomalies import ALL, Anomalies, Fault, decode, encode
from tests.filesystems.availability import require
from tests.filesystems.mounts import FaultyMount, faulty_mounts, why_no_fuse

pytestmark = pytest.mark.nightly

LONG = 60.0
"""Seconds; longer than any test."""


@pytest.fixture(scope="module", params=["shared", "local"])
def mounts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[FaultyMount]]:
    require(why_no_fuse())
    backing = tmp_path_factory.mktemp("backing")
    with faulty_mounts(backing, shared_locks=request.param == "shared") as made:
        yield list(made)


@pytest.fixture
def ours(mounts: list[FaultyMount], request: pytest.FixtureRequest) -> Iterator[tuple[FaultyMount, Path, Path]]:
    """The first mount, and a new folder through it and through the other mount."""
    mount, other = mounts
    mount.set_anomalies(Anomalies())
    name = f"{abs(hash(request.node.name))}"
    (other.client.directory / name).mkdir()
    yield mount, mount.client.directory / name, other.client.directory / name
    mount.set_anomalies(Anomalies())


Ours = tuple[FaultyMount, Path, Path]


def test_without_anomalies_all_changes_are_visible_at_once(ours: Ours) -> None:
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
    """Return whether a lock in ``there`` excludes this process."""
    with open(there / "lock", "w") as held, open(here / "lock", "w") as wanted:
        lock(held.fileno(), fcntl.LOCK_EX)
        try:
            lock(wanted.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@pytest.mark.parametrize("lock", [pytest.param(fcntl.flock, id="flock"), pytest.param(fcntl.lockf, id="POSIX")])
def test_shared_locks_exclude_other_mounts(ours: Ours, lock: Callable[[int, int], None]) -> None:
    mount, here, there = ours
    assert locked(lock, here, there) == mount.shared_locks
    assert not locked(lambda fd, how: lock(fd, how) if how & fcntl.LOCK_NB else None, here, there), "it was released"


def test_a_link_may_have_to_be_in_the_directory_of_its_file(ours: Ours) -> None:
    mount, here, _ = ours
    mount.set_anomalies(Anomalies(one_directory=True))
    (here / "x").touch()
    (here / "inner").mkdir()
    os.link(here / "x", here / "y")
    with pytest.raises(OSError) as caught:
        os.link(here / "x", here / "inner" / "x")
    assert caught.value.errno == errno.EXDEV


def test_flock_excludes_within_a_mount(ours: Ours) -> None:
    _, here, _ = ours
    assert locked(fcntl.flock, here, here)


def test_an_absent_name_stays_absent_to_stat_and_open_but_is_listed(ours: Ours) -> None:
    mount, here, there = ours
    mount.set_anomalies(Anomalies(negative=LONG))
    assert not (here / "x").exists()
    (there / "x").touch()
    assert not (here / "x").exists() and os.listdir(here) == ["x"]
    with pytest.raises(FileNotFoundError):
        (here / "x").read_text()


def test_attributes_are_stale(ours: Ours) -> None:
    mount, here, there = ours
    mount.set_anomalies(Anomalies(attributes=LONG, entries=LONG))
    (there / "x").write_text("one")
    assert (here / "x").stat().st_size == 3
    (there / "x").write_text("longer")
    assert (here / "x").stat().st_size == 3


def test_a_replaced_file_is_stale_and_complete_until_we_change_it(ours: Ours) -> None:
    mount, here, there = ours
    mount.set_anomalies(Anomalies(data=LONG))
    (there / "x").write_text("one")
    assert (here / "x").read_text() == "one"
    (there / "y").write_text("a longer one")
    os.replace(there / "y", there / "x")
    assert (here / "x").read_text() == "one"
    (here / "z").write_text("ours")
    os.replace(here / "z", here / "x")
    assert (here / "x").read_text() == "ours" == (there / "x").read_text()


def test_pages_are_cached_while_attributes_are_stale(ours: Ours) -> None:
    mount, here, there = ours
    mount.set_anomalies(Anomalies(pages=True, attributes=LONG, entries=LONG))
    (there / "x").write_text("one")
    assert [(here / "x").read_text() for _ in range(2)] == ["one"] * 2  # the cached data is used after a new open
    (there / "x").write_text("two")
    assert (here / "x").read_text() == "one"


def test_a_listing_is_late_except_for_our_own_changes(ours: Ours) -> None:
    mount, here, there = ours
    mount.set_anomalies(Anomalies(listings=LONG))
    assert os.listdir(here) == []
    (there / "x").touch()
    assert os.listdir(here) == [] and (here / "x").exists()
    (here / "y").touch()
    assert sorted(os.listdir(here)) == ["x", "y"]


NUMBERS = ("ESTALE", "EIO", "ENOSPC", "EDQUOT", "EACCES", "EROFS", "ENOLCK", "EPERM")


@pytest.mark.parametrize("error", NUMBERS)
def test_an_operation_with_an_error_has_no_effect(ours: Ours, error: str) -> None:
    mount, here, there = ours
    mount.fail(Fault(("mkdir",), error))
    with pytest.raises(OSError) as raised:
        (here / "d").mkdir()
    assert raised.value.errno == getattr(errno, error) and os.listdir(there) == []


def test_an_operation_with_a_lost_reply_has_an_effect_and_an_error(ours: Ours) -> None:
    mount, here, there = ours
    (here / "x").touch()
    mount.fail(Fault(("link",), "EIO", done=True))
    with pytest.raises(OSError, match="Input/output error"):
        os.link(here / "x", here / "y")
    assert sorted(os.listdir(there)) == ["x", "y"]


def test_a_fault_affects_only_its_paths_with_its_probability(ours: Ours) -> None:
    mount, here, _ = ours
    mount.fail(Fault(("mkdir",), "EIO", pattern="*/bad-*"), Fault(("rmdir",), "EIO", probability=0.0))
    (here / "good").mkdir()
    with pytest.raises(OSError):
        (here / "bad-one").mkdir()
    (here / "good").rmdir()


def test_a_hung_operation_continues_when_it_is_released(ours: Ours) -> None:
    mount, here, _ = ours
    (here / "x").write_text("data")
    mount.fail(Fault(ALL, hang=True))
    with reading(here / "x") as reader:
        time.sleep(0.1)
        assert reader.poll() is None
        mount.fail()
        assert reader.communicate(timeout=30)[0] == b"data"


def test_a_process_with_a_hung_operation_can_be_killed(ours: Ours) -> None:
    mount, here, _ = ours
    (here / "x").touch()
    mount.fail(Fault(ALL, hang=True))
    with reading(here / "x") as reader:
        time.sleep(0.1)
        reader.kill()
        assert reader.wait(30) == -9


def test_unmounting_ends_waiting_calls_and_a_client_can_mount_again(ours: Ours) -> None:
    mount, here, _ = ours
    (here / "x").write_text("data")
    mount.fail(Fault(ALL, hang=True))
    with reading(here / "x") as reader:
        time.sleep(0.1)
        mount.unmount()
        assert reader.wait(30) == 1
    assert not here.exists()
    mount.set_anomalies(Anomalies())
    mount.mount()
    assert (here / "x").read_text() == "data"


def reading(path: Path) -> subprocess.Popen[bytes]:
    """Start a process that prints the file."""
    return subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def test_a_failed_test_leaves_no_mount(tmp_path: Path) -> None:
    require(why_no_fuse())
    with pytest.raises(ZeroDivisionError), faulty_mounts(tmp_path) as mounts:
        where = mounts[0].client.directory
        mounts[0].fail(Fault(ALL, hang=True))
        raise ZeroDivisionError
    assert not where.exists() and str(where) not in Path("/proc/self/mountinfo").read_text()


def test_anomalies_are_encoded_as_json() -> None:
    faults = (Fault(("link",), "EIO", 0.1, True, True, "*.json"), Fault(ALL, hang=True))
    anomalies = Anomalies(5, 30, 5, 5, True, 1, True, faults)
    assert decode(encode(anomalies)) == anomalies
