"""States that are loaded into tensors that exist."""

from collections import OrderedDict
from copy import deepcopy
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcelastic.training.in_place import copied
from hpcelastic.training.leaves import map_leaves

SHAPES = st.lists(st.integers(0, 3), max_size=2).map(tuple)
TENSORS = st.builds(
    lambda shape, type, seed: torch.full(shape, seed, dtype=type),
    SHAPES,
    st.sampled_from([torch.float32, torch.int64]),
    st.integers(0, 9),
)
STATES = st.recursive(
    TENSORS | st.integers(),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=3),
    max_leaves=6,
)


def same(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else bool(first == second)


@given(STATES, STATES)
def test_the_copy_is_equal_whatever_it_is_copied_into(state: Any, like: Any) -> None:
    found = copied(state, like)
    assert same(found, state)
    expected = deepcopy(state)
    map_leaves(lambda _, leaf: leaf.fill_(10) if isinstance(leaf, torch.Tensor) else leaf, state)
    assert same(found, expected), "the memory of the state can be used again"


def test_tensors_that_fit_are_overwritten_and_returned() -> None:
    like = {"a": torch.nn.Parameter(torch.zeros(3)), "b": (torch.zeros(2),), "c": torch.zeros(2), "d": torch.zeros(1)}
    state = {"a": torch.ones(3), "b": (torch.ones(2),), "c": torch.ones(3), "d": torch.ones(1, dtype=torch.int64)}
    found = copied(state, like)
    assert found["a"] is like["a"] and found["b"][0] is like["b"][0]
    assert torch.equal(like["a"], torch.ones(3)) and like["a"].requires_grad
    assert torch.equal(like["c"], torch.zeros(2)) and torch.equal(found["c"], torch.ones(3))
    assert found["d"].dtype == torch.int64


def test_tensors_that_share_memory_are_not_overwritten() -> None:
    """The state may have different values for them."""
    memory = torch.zeros(4)
    like = {"a": memory, "b": memory, "c": torch.zeros(1).expand(4), "d": torch.zeros(2, 2).T}
    state = {"a": torch.full((4,), 1.0), "b": torch.full((4,), 2.0), "c": torch.arange(4.0), "d": torch.ones(2, 2)}
    assert same(copied(state, like), state)
    assert torch.equal(memory, torch.zeros(4))


def test_the_versions_of_a_module_are_kept() -> None:
    state = torch.nn.BatchNorm1d(2).state_dict()
    found = copied(state, torch.nn.BatchNorm1d(2).state_dict())
    assert isinstance(found, OrderedDict)
    assert found._metadata == state._metadata  # type: ignore[attr-defined]
