"""The values that a failed step may have changed are restored."""

import random
from collections.abc import Callable

import numpy
import pytest
import torch

from hpcelastic.training.small_state import SmallState


@pytest.fixture(autouse=True)
def seeded() -> None:
    random.seed(1)
    torch.manual_seed(2)
    numpy.random.seed(3)


DRAWS: dict[str, Callable[[], object]] = {
    "python": random.random,
    "torch": lambda: torch.rand(1).item(),
    "numpy": numpy.random.random,
    "one of numpy's normal deviates": numpy.random.standard_normal,
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("drawn_before", range(4))
def test_the_generators_repeat_the_numbers_of_the_step(draw: Callable[[], object], drawn_before: int) -> None:
    state = SmallState({})
    for _ in range(drawn_before):  # each step copies, also after a step that has drawn nothing
        state.copy()
        draw()
        state.copy()
    state.copy()
    numbers = [draw() for _ in range(3)]
    state.restore()
    assert [draw() for _ in range(3)] == numbers
    state.restore()
    assert [draw() for _ in range(3)] == numbers


def test_a_seed_of_the_script_is_a_use_of_the_generator() -> None:
    state = SmallState({})
    state.copy()
    numpy.random.seed(5)
    state.copy()
    number = numpy.random.random()
    state.restore()
    assert numpy.random.random() == number


def test_numpy_is_not_asked_while_its_generator_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    state, asked = SmallState({}), []
    get_state = numpy.random.get_state
    monkeypatch.setattr(numpy.random, "get_state", lambda **options: asked.append(1) or get_state(**options))  # type: ignore[func-returns-value]
    for _ in range(3):
        state.copy()
    assert len(asked) == 1
    numpy.random.random()
    state.copy()
    assert len(asked) == 2


def test_another_generator_of_numpy_is_copied_each_time() -> None:
    before = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.PCG64(1))
    try:
        state = SmallState({})
        state.copy()
        numpy.random.random()
        state.copy()
        number = numpy.random.random()
        state.restore()
        assert numpy.random.random() == number
    finally:
        numpy.random.set_bit_generator(before)


def test_the_users_values_and_the_buffers_are_restored() -> None:
    values = {"losses": [1]}
    model = torch.nn.BatchNorm1d(2)
    state = SmallState(values)
    state.find_buffers([model])
    state.copy()
    for _ in range(2):
        values["losses"].append(2)
        model(torch.rand(4, 2))
        state.restore()
        assert values == {"losses": [1]}
        assert model.num_batches_tracked == 0
