"""When rank 0 saves during a training. The clock belongs to the test."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcelastic.backends.connect import record_backend
from hpcelastic.backends.files import FileBackend
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.settings import RendezvousSettings
from hpcelastic.rendezvous.run import read_state
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import FIRST, Register
from hpcelastic.training import Checkpoints, context, device_groups, periodic_saves
from hpcelastic.training.periodic_saves import PeriodicSaves, failure_history
from hpcelastic.training.recovery import Held
from hpcelastic.training.save_interval import FailureHistory, best_interval
from tests.training.workers import become, become_nobody, make_run

STEP_TIME = 1.0


class Training(Checkpoints):
    """A training whose steps take a second, and whose checkpoints are only counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, every: Any = "auto", **options: Any) -> None:
        super().__init__(**options)
        self.now, self.step, self.cost = 1000.0, 0, 0.2
        self.publishes = False
        """Whether the agent is publishing."""

        self.saved: list[tuple[int, Mapping[str, float] | None]] = []
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        monkeypatch.setattr(periodic_saves, "time", clock)
        monkeypatch.setattr(device_groups, "time", clock)
        self.saves = PeriodicSaves(self, every)
        self.saves.begin_round(context(), 0)

    def save(self, step: int, state: Any, *, wait: bool = True, metrics: Mapping[str, float] | None = None) -> Path:
        self.now += self.cost
        self.saved.append((step, metrics))
        return Path()

    def is_saving(self) -> bool:
        return self.publishes

    def run(self, steps: int, metrics: Mapping[str, float] | None = None) -> list[int]:
        """Train for so many steps. Return the steps that have been saved."""
        before = len(self.saved)
        for _ in range(steps):
            self.now += STEP_TIME
            self.step += 1
            if self.saves.is_due(self.step, metrics or {}):
                self.saves.save(Held(1, self.step), dict, metrics or {}, wait=False)
        return [step for step, _ in self.saved[before:]]


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    become_nobody(monkeypatch)


def test_a_number_of_steps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert Training(monkeypatch, every=30).run(100) == [30, 60, 90]
    assert Training(monkeypatch, every=0).run(100) == []
    assert capsys.readouterr().out == ""


def test_the_first_save_comes_early_and_the_others_at_the_best_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch)
    first, *others = training.run(1000)
    assert first == pytest.approx(best_interval(None, FailureHistory()), abs=STEP_TIME)
    expected = best_interval(training.cost, FailureHistory())
    distances = [later - earlier for earlier, later in zip([first, *others], others, strict=False)]
    assert distances and distances == pytest.approx([expected] * len(distances), abs=2 * STEP_TIME)


def test_no_save_is_begun_while_the_last_one_is_unpublished(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch)
    assert len(training.run(50)) == 1
    training.publishes = True
    assert training.run(1000) == []
    training.publishes = False
    assert training.run(1) == [1051]


def test_the_interval_is_printed_when_it_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(monkeypatch)
    training.run(50)
    (line,) = capsys.readouterr().out.splitlines()
    assert line == (
        "saving a checkpoint about every 186 steps (186 s): a save stops training for 0.2 s, and 0 failures in 0.0 h"
    )
    training.run(1000)
    assert capsys.readouterr().out == ""
    training.cost = 20.0
    training.run(1000)
    assert "(1330 s): a save stops training for 10 s" in capsys.readouterr().out


def test_steps_that_are_longer_than_the_best_interval_are_all_saved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.training.test_periodic_saves.STEP_TIME", 600.0)
    assert Training(monkeypatch).run(3) == [1, 2, 3]
    assert "about every step (600 s)" in capsys.readouterr().out


def test_a_state_with_the_metric_is_always_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch, every=0, best="loss")
    assert training.run(1, {"loss": 0.5}) == [1]
    assert training.run(1, {"accuracy": 0.5}) == []
    assert training.run(1, {"loss": 0.4, "accuracy": 0.5}) == [3]
    assert training.saved[0] == (1, {"loss": 0.5})
    training.saves.save(Held(1, 9), dict, {"accuracy": 0.5}, wait=True)
    assert training.saved[-1] == (9, None)


def test_other_ranks_do_not_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert Training(monkeypatch).run(1000) == []


def test_a_run_with_failures_saves_more_often(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths = RunPaths(make_run(tmp_path, round=5))
    spent = {"worker": 3, "node": 5, "join": 7, "checkpoint": 1}
    register = Register(paths.register, "test")
    assert register.commit(register.read().number, encode(replace(read_state(FileBackend(paths)), spent=spent)))
    os.utime(paths.register / FIRST, (400.0, 400.0))
    become(monkeypatch, tmp_path, 5)
    training = Training(monkeypatch)  # its time is 1000 at the beginning
    assert failure_history(tmp_path) == FailureHistory(age=600.0, failures=8)
    first = training.run(100)[0]
    assert first == pytest.approx(best_interval(None, FailureHistory(600.0, 8)), abs=STEP_TIME)


def test_the_age_of_a_run_in_a_server_is_that_of_its_record(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.backend.parent.mkdir(parents=True)
    record_backend(paths, "r", RendezvousSettings(backend="etcd", endpoint="localhost:1"))
    os.utime(paths.backend, (400.0, 400.0))
    assert periodic_saves.creation_time(paths) == 400.0


def test_a_run_that_cannot_be_read_saves_as_often_as_one_without_failures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    become(monkeypatch, tmp_path / "missing", 5)
    assert len(Training(monkeypatch).run(50)) == 1
    assert "does not consider recent failures" in caplog.text
