"""The directory through which the members of an examination coordinate."""

import errno
from pathlib import Path

import pytest

from hpcelastic.doctor.coordination import Coordination, Members
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
