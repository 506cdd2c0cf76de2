"""The progress of a training, from the files that nodes write while a round runs."""

import time
from pathlib import Path

import pytest

from hpcelastic.api.progress import Progress, read_progress
from hpcelastic.protocol.events import TrainingTotals
from hpcelastic.storage.events import event_line
from hpcelastic.storage.paths import RunPaths


def write(paths: RunPaths, node: str, totals: TrainingTotals) -> None:
    paths.training_totals.mkdir(parents=True, exist_ok=True)
    paths.totals_of(f"{node}@0-a").write_bytes(event_line(totals, node))


def totals(**more: object) -> TrainingTotals:
    """Return the totals of 100 steps after 40 others, at 2 steps/s and then at 4 steps/s."""
    samples = (0.5, 1.5, 3.5, 7.5, 15.5, 31.5)
    values = {"before": 40, "first_step": 10.0, "last_step": 50.5, "samples": samples, **more}
    return TrainingTotals(round=3, rank=0, steps=100, **values)  # type: ignore[arg-type]  # by name


def test_without_files_the_progress_is_unknown(tmp_path: Path) -> None:
    assert read_progress(RunPaths(tmp_path)) is None


def test_the_progress_of_the_newest_round(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write(paths, "n1", totals(total=300, losses=((40.0, 2.0), (138.0, 0.5))))
    write(paths, "n2", TrainingTotals(round=2, rank=0, steps=500, before=0))
    found = read_progress(paths)
    assert found is not None
    assert (found.step, found.total, found.loss) == (139, 300, 0.5)
    assert found.rate == pytest.approx(36 / 9.0)  # from the 64th step on
    assert found.seconds_left == pytest.approx(161 / 4)
    assert str(found) == "step 139 of 300 (46 %), 4 steps/s, 40 s left, loss 0.5"


def test_the_node_that_has_written_last_has_the_most_steps(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write(paths, "n1", totals())
    write(paths, "n2", TrainingTotals(round=3, rank=1, steps=90, before=40))
    found = read_progress(paths)
    assert found is not None and (found.step, found.total, found.share, found.seconds_left) == (139, None, None, None)
    assert str(found) == "step 139, 4 steps/s"


def test_a_training_that_is_complete(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write(paths, "n1", totals(total=140, done=51.0))
    found = read_progress(paths)
    assert found is not None and (found.step, found.share, found.seconds_left) == (140, 1.0, 0.0)
    assert str(found).startswith("step 140 of 140 (100 %), 4 steps/s")


def test_more_steps_than_announced_are_no_more_than_all() -> None:
    assert Progress(12, 10, 1.0, None, 0.0).share == 1.0


def test_the_newest_save_of_the_round(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    up = time.clock_gettime(time.CLOCK_BOOTTIME)
    write(paths, "n1", totals(saved=up - 60.0, saved_step=120))
    write(paths, "n2", totals(saved=up - 90.0, saved_step=110))
    write(paths, "n3", totals())
    found = read_progress(paths)
    assert found is not None and found.saved_step == 120
    assert found.saved == pytest.approx(time.time() - 60.0, abs=5.0)
