"""The directory through which the members of an examination coordinate."""

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcelastic.doctor.coordination import Coordination, Members, MissingMembersError
from hpcelastic.errors import StoreError
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


@pytest.mark.parametrize(("count", "least", "most"), [(1, 0.005, 0.25), (1000, 1.25, 1.25)])
def test_a_poll_is_as_seldom_as_the_number_of_members_demands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, least: float, most: float
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
        coordination.receive("step", [0])
    assert (min(sleeps), max(sleeps)) == (least, most)
