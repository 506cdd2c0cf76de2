"""The removal of the directories of old rounds."""

import os
from pathlib import Path

from hpcelastic.storage.round_directories import remove_rounds


def test_the_directories_of_old_rounds_are_removed_and_no_others(tmp_path: Path) -> None:
    for name in ("round-0001", "round-0002", "round-0003", "round-10000", "round-x", "round-²", "early", "notes"):
        (tmp_path / name / "part").mkdir(parents=True)
        (tmp_path / name / "part" / "file").touch()
    remove_rounds(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == ["early", "notes", "round-0003", "round-10000", "round-x", "round-²"]
    remove_rounds(tmp_path, 0)
    remove_rounds(tmp_path / "elsewhere", 2)
    assert len(os.listdir(tmp_path)) == 6


def test_logs_in_another_place_are_removed_too(tmp_path: Path) -> None:
    (tmp_path / "scratch" / "round-0001").mkdir(parents=True)
    (tmp_path / "logs").symlink_to(tmp_path / "scratch")
    remove_rounds(tmp_path / "logs", 1)
    assert os.listdir(tmp_path / "scratch") == []
