"""Batches as nested structures."""

from collections import UserDict, namedtuple
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from hpcelastic.training.nested import TEMPLATE_SIZE, empty, join, part

Pair = namedtuple("Pair", "x y")

SAMPLES: dict[str, list[Any]] = {
    "tensors": [torch.full((3,), float(i)) for i in range(5)],
    "numbers": [*range(5)],
    "tuples": [(torch.tensor([i, i]), i) for i in range(5)],
    "dicts": [{"x": torch.tensor([i]), "inner": {"name": f"n{i}", "y": i}} for i in range(5)],
    "named tuples": [Pair(torch.tensor([i]), f"n{i}") for i in range(5)],
    "lists in tuples": [([i, float(i)], f"n{i}") for i in range(5)],
}


def values(batch: Any) -> Any:
    """Return a batch that ``==`` can compare, with the types of its containers and tensors."""
    if isinstance(batch, torch.Tensor):
        return str(batch.dtype), tuple(batch.shape), batch.tolist()
    if isinstance(batch, (dict, UserDict)):
        return type(batch), {key: values(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch), [values(value) for value in batch]
    return batch


@pytest.mark.parametrize("samples", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize(("start", "stop"), [(0, 5), (0, 1), (2, 4), (4, 5)])
def test_a_part_is_the_batch_of_its_samples(samples: list[Any], start: int, stop: int) -> None:
    assert values(part(default_collate(samples), 5, start, stop)) == values(default_collate(samples[start:stop]))


@pytest.mark.parametrize("samples", SAMPLES.values(), ids=SAMPLES)
def test_parts_are_joined_to_the_batch(samples: list[Any]) -> None:
    parts = [default_collate(samples[:1]), default_collate(samples[1:4]), default_collate(samples[4:])]
    assert values(join(parts)) == values(default_collate(samples))


@pytest.mark.parametrize("samples", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_an_empty_batch_has_the_structure_of_any_batch(samples: list[Any], size: int) -> None:
    batch = default_collate(samples[:size])
    assert values(empty(default_collate(samples[:1] * TEMPLATE_SIZE))) == values(part(batch, size, 0, 0))


def test_what_is_no_tensor_becomes_an_empty_list() -> None:
    batch = {"x": torch.ones(2, 4), "names": ["a", "a"], "count": 2, "nothing": None, "boxes": [torch.ones(7, 4)] * 2}
    assert values(empty(batch)) == values({"x": torch.ones(0, 4), "names": [], "count": [], "nothing": [], "boxes": []})


@pytest.mark.parametrize("size", [2, 3])
def test_a_list_of_samples_of_any_sizes_is_divided(size: int) -> None:
    """As many models for the detection of objects need them."""
    images = [torch.ones(5, 8 + i, 8) for i in range(size)]
    targets = [{"boxes": torch.ones(i, 4), "label": i} for i in range(size)]
    assert values(part((images, targets), size, 1, 2)) == values((images[1:2], targets[1:2]))


def test_a_value_of_the_whole_batch_stays() -> None:
    batch = [torch.arange(2), 7, torch.tensor(0.5), "train", None]
    assert values(part(batch, 2, 0, 1)) == values([torch.arange(1), 7, torch.tensor(0.5), "train", None])
    assert values(part((torch.arange(2), 7), 2, 0, 1)) == values((torch.arange(1), 7))


def test_a_mapping_keeps_its_type() -> None:
    assert values(part(UserDict(x=torch.arange(3)), 3, 1, 2)) == values(UserDict(x=torch.tensor([1])))


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        ([torch.ones(4, 2), torch.ones(7)], r"a tensor of shape \(7,\) in a batch of 4 samples"),
        ({"x": torch.ones(4), "graph": object()}, "a object in a batch of 4 samples"),
    ],
)
def test_what_cannot_be_divided_is_refused(batch: Any, what: str) -> None:
    with pytest.raises(TypeError, match=f"{what} cannot be divided into samples"):
        part(batch, 4, 0, 2)
