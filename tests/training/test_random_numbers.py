"""The random numbers of a training continue from a checkpoint."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcelastic.training import Checkpoints
from hpcelastic.training.random_numbers import gather_random_states, restore_random_state


def numbers() -> list[float]:
    return [random.gauss(0, 1), float(np.random.normal()), float(torch.randn(()))]


def test_the_numbers_that_follow_are_those_after_the_save(tmp_path: Path) -> None:
    numbers()
    Checkpoints(tmp_path).save(1, {"random": gather_random_states()})
    following = [numbers(), numbers()]
    checkpoint = Checkpoints(tmp_path).load()
    assert checkpoint is not None
    restore_random_state(checkpoint.state["random"])
    assert [numbers(), numbers()] == following


def test_another_generator_of_numpy_continues_too(tmp_path: Path) -> None:
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        test_the_numbers_that_follow_are_those_after_the_save(tmp_path)
    finally:
        np.random.set_bit_generator(before)


def test_a_rank_that_joins_keeps_its_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    states = gather_random_states()
    expected = numbers()
    restore_random_state(states)
    monkeypatch.setenv("RANK", "1")
    numbers()
    restore_random_state(states)
    assert numbers() != expected
