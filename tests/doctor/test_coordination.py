"""The directory through which the members of an examination coordinate."""

import errno
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from hpcelastic.doctor.coordination import Coordination, Members, MissingMembersError
from hpcelastic.doctor.node_report import _check_all_peers
from hpcelastic.doctor.reachability import EchoAddress, peers
from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import encode
from hpcelastic.storage import files


@pytest.fixture
def coordination(tmp_path: Path) -> Coordination:
    return Coordination(tmp_path, Members(), timeout=1.0, report=print)


def test_a_directory_whose_rename_lost_its_reply_is_created(
    coordination: Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client also remembers that the new name was absent, so only a listing shows it."""
    rename = Path.rename

    def lose_reply(source: Path, target: Path) -> Path:
        rename(source, target)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(Path, "rename", lose_reply)
    monkeypatch.setattr(Path, "exists", lambda path: False)
    coordination.open()
    assert files.names(coordination.root) == ["steps"]


def test_a_member_waits_until_it_can_open_its_directory(
    coordination: Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered, exists = [False, False], files.exists
    monkeypatch.setattr(files, "exists", lambda path: remembered.pop() if remembered else exists(path))
    coordination.open()
    assert remembered == []


def test_a_directory_that_cannot_be_renamed_is_an_error(
    coordination: Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> Path:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StoreError, match="Permission denied"):
        coordination.open()


def test_the_directory_of_another_examination_is_not_used(coordination: Coordination, tmp_path: Path) -> None:
    coordination.open()
    with pytest.raises(StoreError, match="exists already: another doctor uses this --id"):
        Coordination(tmp_path, Members(), timeout=1.0, report=print).open()


@pytest.mark.parametrize(
    ("count", "waiting", "least", "most"),
    [
        pytest.param(1, None, 0.005, 0.25, id="one"),
        pytest.param(1000, None, 1.25, 1.25, id="all of many"),
        pytest.param(10_000, None, 2.0, 2.0, id="all of very many"),
        pytest.param(10_000, 2, 0.005, 0.25, id="a pair"),
    ],
)
def test_the_interval_between_polls_grows_with_the_number_of_members_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, waiting: int | None, least: float, most: float
) -> None:
    now, sleeps = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("hpcelastic.doctor.coordination.time", clock)
    coordination = Coordination(tmp_path, Members(count), timeout=60.0, report=lambda line: None)
    coordination.open()
    with pytest.raises(MissingMembersError):
        coordination.receive("step", [0], waiting=waiting)
    assert (min(sleeps), max(sleeps)) == (least, most)


def test_members_meet_without_reading_the_files_of_each_other(
    coordination: Coordination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordination.open()
    monkeypatch.setattr(files, "read", Mock(side_effect=AssertionError))
    second = Coordination(tmp_path, Members(2, 1, "alone"), timeout=60.0, report=print)
    coordination.publish("race ready")
    second.meet("race ready")


def test_members_do_not_meet_a_member_that_does_not_come(coordination: Coordination, tmp_path: Path) -> None:
    coordination.open()
    second = Coordination(tmp_path, Members(2, 1, "alone"), timeout=0.0, report=print)
    with pytest.raises(MissingMembersError, match="no message from member 0 within 0 s"):
        second.meet("race ready")
    coordination.fail("no space")
    with pytest.raises(StoreError, match="member 0 gave up: no space"):
        second.meet("race ready")


def test_a_member_reads_the_addresses_of_its_peers_only(
    coordination: Coordination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, read = 256, list[str]()
    coordination.open()
    for rank in range(count):
        member = Coordination(tmp_path, Members(count, rank, "alone"), timeout=1.0, report=print)
        member.publish("echo server of the agent", encode(EchoAddress("127.0.0.1", 1, 1)))
        member.publish("echo server of the agent checked")
    real = files.read
    monkeypatch.setattr(files, "read", lambda path: (read.append(path.name), real(path))[1])
    monkeypatch.setattr("hpcelastic.doctor.node_report.check_reachability", lambda servers, ranks, message: [])
    me = Coordination(tmp_path, Members(count, 7, "alone"), timeout=1.0, report=print)
    assert _check_all_peers(me, "agent", "127.0.0.1", ()) == []
    assert sorted(read) == sorted(f"echo server of the agent.{rank}" for rank in peers(7, count))
