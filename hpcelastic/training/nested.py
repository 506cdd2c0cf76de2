"""Batches as nested structures: dicts, lists, tuples and named tuples of tensors.

A list or tuple is either a list of fields, such as inputs and labels, or a list of samples, such as the strings of a
batch. It is a list of samples if it has as many items as the batch has samples, and its items are no fields.
"""

import copy
import itertools
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

from .leaves import like_sequence

TEMPLATE_SIZE = 2
"""The number of equal samples in a batch from which `empty` is made. It distinguishes lists of samples from fields."""

_NAMES = (str, bytes)


def part(batch: Any, size: int, start: int, stop: int) -> Any:
    """Return the samples ``start`` to ``stop`` of a batch with ``size`` samples.

    Numbers, strings and tensors without dimensions stay. Raises ``TypeError`` for what cannot be divided.
    """

    def other(value: Any) -> Any:
        if _is_single(value):
            return value
        kind = f"a tensor of shape {tuple(value.shape)}" if _is_array(value) else f"a {type(value).__name__}"
        raise TypeError(
            f"{kind} in a batch of {size} samples cannot be divided into samples; let collate_fn return dicts, lists "
            "and tuples of tensors whose first dimension is the samples"
        )

    return _sliced(batch, size, slice(start, stop), other)


def empty(batch: Any) -> Any:
    """Return a batch with no samples and the structure of ``batch``, which has ``TEMPLATE_SIZE`` equal samples.

    Tensors have no rows. What is not a tensor becomes an empty list.
    """

    def other(value: Any) -> Any:
        if _is_array(value):
            return value[:0] if value.ndim else value
        return []

    return _sliced(batch, TEMPLATE_SIZE, slice(0), other)


def join(batches: Sequence[Any]) -> Any:
    """Return one batch with the samples of all ``batches``, each of which ``default_collate`` has made."""
    import torch

    first = batches[0]
    if isinstance(first, torch.Tensor):
        return torch.cat([*batches])
    if isinstance(first, Mapping):
        return _like_mapping(first, {key: join([batch[key] for batch in batches]) for key in first})
    if isinstance(first[0], _NAMES):
        return type(first)(itertools.chain(*batches))
    return like_sequence(first, [join(column) for column in zip(*batches, strict=True)])


def _sliced(value: Any, size: int, rows: slice, other: Callable[[Any], Any]) -> Any:
    """Return ``rows`` of all tensors and lists of samples; ``other`` gives the rest."""
    if isinstance(value, Mapping):
        return _like_mapping(value, {key: _sliced(item, size, rows, other) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        if _is_list_of_samples(value, size):
            return value[rows]
        return like_sequence(value, [_sliced(item, size, rows, other) for item in value])
    return value[rows] if _has_samples(value, size) else other(value)


def _is_list_of_samples(value: Sequence[Any], size: int) -> bool:
    if len(value) != size or hasattr(value, "_fields") or len({type(item) for item in value}) > 1:
        return False
    fields = [_has_samples(item, size) for item in value]
    return not (any(fields) and all(field or _is_single(item) for field, item in zip(fields, value, strict=True)))


def _has_samples(value: Any, size: int) -> bool:
    """Return whether ``value`` has one entry for each sample."""
    if isinstance(value, Mapping):
        return any(_has_samples(item, size) for item in value.values())
    if isinstance(value, (list, tuple)):
        return _is_list_of_samples(value, size) or any(_has_samples(item, size) for item in value)
    return _is_array(value) and value.ndim > 0 and len(value) == size


def _is_array(value: Any) -> bool:
    """Return whether ``value`` is a tensor or an array of numpy."""
    return hasattr(value, "shape") and hasattr(value, "ndim")


def _is_single(value: Any) -> bool:
    """Return whether ``value`` belongs to the batch as a whole, such as a length."""
    return value is None or isinstance(value, (*_NAMES, int, float)) or (_is_array(value) and value.ndim == 0)


def _like_mapping(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if not isinstance(value, MutableMapping):
        return items
    made = copy.copy(value)
    made.update(items)
    return made
