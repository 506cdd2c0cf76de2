"""Losses that are not finite, or have risen suddenly, and the checkpoints to which training returns."""

import json
import math
from pathlib import Path
from typing import SupportsFloat

import numpy as np
import pytest
import torch

from hpcelastic.errors import PoisonedState
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.findings import Rollback
from hpcelastic.training import Checkpoints, LossCheck
from hpcelastic.training.recovery import Held
from hpcelastic.training.rollback import VARIABLE, permitted_state
from hpcelastic.training.state_checks import StateChecks


def return_to(monkeypatch: pytest.MonkeyPatch, *values: int) -> None:
    """Let the agent have passed this return to an older state."""
    monkeypatch.setenv(VARIABLE, json.dumps(encode(Rollback(*values))))


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ControlPage:
    page = ControlPage.make(1)
    monkeypatch.setenv("HPCELASTIC_CONTROL_PAGE", page.name)
    monkeypatch.setenv("HPCELASTIC_ROUND", "4")
    monkeypatch.setenv("LOCAL_RANK", "0")
    return page


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    made = Checkpoints(tmp_path / "checkpoints", round=3, keep=9)
    for step in (50, 100, 150):
        made.save(step, {"step": step})
    return made


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_must_be_finite(loss: float) -> None:
    check = LossCheck(None)
    check(2.5, 6)
    check(torch.tensor(-1e30), 7)
    with pytest.raises(PoisonedState, match=f"^the loss is {loss} after 8 steps; there is no checkpoint to return to$"):
        check(torch.tensor(loss), 8)


def test_a_loss_must_not_rise_suddenly() -> None:
    check = LossCheck(None, spike=10.0)
    for step in range(19):
        check(2.0, step)
    check(1000.0, 19)  # too few to compare with
    check(20.0, 20)
    with pytest.raises(PoisonedState, match=r"^the loss is 20\.1, more than 10 times 2, the median of the last 21,"):
        check(20.1, 21)


def test_a_loss_after_zeros_is_no_spike() -> None:
    check = LossCheck(None, spike=10.0)
    for step in range(30):
        check(0.0, step)
    check(1e-9, 30)


@pytest.mark.parametrize("loss", [2, np.float32(2), np.int64(2), torch.tensor(2), torch.tensor([2.0])], ids=repr)
def test_a_loss_is_any_number(loss: SupportsFloat) -> None:
    check = LossCheck(None)
    check(loss, 0)
    with pytest.raises(PoisonedState, match="the loss is nan"):
        check(np.float32(math.nan), 1)


def test_losses_of_another_number_of_ranks_are_not_compared() -> None:
    """A loss is often the sum over the share of a rank, which grows when ranks are lost."""
    checks = StateChecks(None, 10.0, 0)
    for round, world_size in enumerate((16, 16, 1)):
        checks.begin_round(world_size)
        for step in range(30 * round, 30 * round + 30):
            checks.loss(2.3 * 1024 / world_size, step)
    checks.begin_round(1)
    with pytest.raises(PoisonedState, match="more than 10 times 2355"):
        checks.loss(1e6, 90)


@pytest.mark.parametrize("spike", [1.0, 0.0, math.nan])
def test_the_factor_is_checked(spike: float) -> None:
    with pytest.raises(ValueError, match="it must be a factor of more than 1"):
        LossCheck(None, spike=spike)


def demand(checkpoints: Checkpoints, page: ControlPage, step: int) -> tuple[int, int] | None:
    """Return what a bad loss demands of the agent."""
    with pytest.raises(PoisonedState):
        LossCheck(checkpoints)(math.nan, step)
    return page.marks(0).rollback(4)


def test_training_returns_to_the_newest_checkpoint(checkpoints: Checkpoints, page: ControlPage) -> None:
    assert demand(checkpoints, page, 170) == (170, 150)
    assert demand(checkpoints, page, 149) == (149, 100)


def test_it_returns_further_if_that_did_not_help(
    checkpoints: Checkpoints, page: ControlPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    return_to(monkeypatch, 3, 150, 170, 1)
    assert demand(checkpoints, page, 170) == (170, 100)
    return_to(monkeypatch, 3, 50, 170, 3)
    assert demand(checkpoints, page, 170) == (170, 50)  # there is none before it


def test_another_step_begins_anew(checkpoints: Checkpoints, page: ControlPage, monkeypatch: pytest.MonkeyPatch) -> None:
    return_to(monkeypatch, 2, 20, 60, 1)
    assert demand(checkpoints, page, 170) == (170, 150)


def test_without_a_checkpoint_nothing_is_demanded(tmp_path: Path, page: ControlPage) -> None:
    assert demand(Checkpoints(tmp_path / "none", round=3), page, 170) is None


def test_excluded_checkpoints_are_not_loaded(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    return_to(monkeypatch, 3, 100, 170, 1)
    loaded = checkpoints.load()
    assert loaded is not None and loaded.step == 100 and checkpoints.newest() == Held(3, 100)
    newer = Checkpoints(checkpoints.directory, round=4, keep=9)
    newer.save(120, {"step": 120})
    loaded = newer.load()
    assert loaded is not None and (loaded.step, loaded.round) == (120, 4)
    assert len([*checkpoints.directory.glob("*.pt")]) == 4  # nothing is removed


def test_no_state_in_memory_of_that_round_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert permitted_state(Held(3, 170)) == Held(3, 170) and permitted_state(None) is None
    return_to(monkeypatch, 3, 150, 170, 1)
    assert permitted_state(Held(3, 170)) is None and permitted_state(Held(3, 150)) is None
    assert permitted_state(Held(4, 151)) == Held(4, 151)
