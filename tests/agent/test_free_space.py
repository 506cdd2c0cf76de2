"""When a filesystem will be full, and what people read about it."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcelastic.agent import free_space
from hpcelastic.agent.free_space import FreeSpace, SpaceForecast, free_bytes

GIB = 2**30


def forecast(*free: float, every: float = 600.0) -> float | None:
    """Return the seconds that are left after these free GiB at equal distances."""
    made = SpaceForecast()
    for number, amount in enumerate(free):
        made = made.after(number * every, int(amount * GIB))
    return made.seconds_left()


@given(st.integers(2**20, 2**40), st.integers(1, 2**45), st.integers(6, 40), st.floats(60.0, 1e5))
def test_a_steady_loss_is_continued(loss: int, left: int, count: int, every: float) -> None:
    made = SpaceForecast()
    for number in range(count):
        made = made.after(number * every, left + (count - 1 - number) * loss)
    assert made.seconds_left() == pytest.approx(left / loss * every, rel=1e-3)


@pytest.mark.parametrize(
    "free",
    [
        (50, 40, 30, 20, 10),
        (10, 10, 10, 10, 10, 10),
        (10, 11, 12, 13, 14, 15),
        (50, 40, 30, 30, 30, 30, 30),
        (50, 40, 30, 20, 10, 60, 61, 62),
        (),
    ],
    ids=["too few", "constant", "growing", "the first checkpoints", "someone has removed files", "none"],
)
def test_there_is_no_forecast(free: tuple[float, ...]) -> None:
    assert forecast(*free) is None


def test_noise_does_not_hide_the_loss() -> None:
    """About 8 GiB are lost every 600 s."""
    assert forecast(60, 52, 49, 38, 31, 20) == pytest.approx(20 / 8 * 600, rel=0.1)


def test_observations_within_seconds_are_left_out() -> None:
    assert forecast(60, 50, 40, 30, 20, 10, every=1.0) is None
    assert len(SpaceForecast().after(0.0, 9).after(59.0, 8).after(60.0, 7).observations) == 2


class Disk:
    """A filesystem, and the reports about it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.free, self.reports = 0.0, 100.0, list[str]()
        monkeypatch.setattr(free_space, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(free_space, "free_bytes", lambda directory: int(self.free * GIB))
        self.watch = FreeSpace(self.reports.append)

    def save(self, times: int, loss: float) -> None:
        for _ in range(times):
            self.now += 600.0
            self.free -= loss
            self.watch.after_save("/c")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_filesystem_that_fills_is_reported_once_an_hour(disk: Disk) -> None:
    disk.save(6, 2.0)
    assert disk.reports == ["/c: 88.0 GiB are free, full in about 7 h at the present rate"]
    disk.save(5, 2.0)
    assert len(disk.reports) == 1
    disk.save(1, 2.0)
    assert disk.reports[1:] == ["/c: 76.0 GiB are free, full in about 6 h at the present rate"]


def test_a_filesystem_that_lasts_for_days_is_not_reported(disk: Disk) -> None:
    disk.save(50, 0.1)
    assert disk.reports == []


def test_the_last_hour_is_told_in_minutes(disk: Disk) -> None:
    disk.save(6, 15.0)
    assert disk.reports == ["/c: 10.0 GiB are free, full in about 7 min at the present rate"]


def test_a_checkpoint_that_is_larger_than_the_free_space_is_reported(disk: Disk) -> None:
    disk.watch.before_save("/c", 7, 100 * GIB)
    assert disk.reports == []
    disk.watch.before_save("/c", 7, 101 * GIB)
    assert disk.reports == [
        "/c: the checkpoint of step 7 has 101.0 GiB, and only 100.0 GiB are free; it is tried nevertheless"
    ]


def test_a_filesystem_that_cannot_be_examined_is_not_reported(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_space, "free_bytes", lambda directory: None)
    disk.watch.before_save("/c", 7, 2**60)
    disk.save(10, 2.0)
    assert disk.reports == []


def test_free_bytes_are_those_of_the_directory_or_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"/scratch/run": 9, "/scratch/run/checkpoints": 5}

    def statvfs(path: object) -> SimpleNamespace:
        if str(path) not in free:
            raise FileNotFoundError(2, "No such file or directory")
        return SimpleNamespace(f_bavail=free[str(path)], f_frsize=4096, f_bfree=10**9, f_bsize=2**20)

    monkeypatch.setattr("os.statvfs", statvfs)
    assert free_bytes("/scratch/run/checkpoints") == 5 * 4096
    assert free_bytes("/scratch/run/new") == 9 * 4096
    assert free_bytes("/elsewhere/new") is None
