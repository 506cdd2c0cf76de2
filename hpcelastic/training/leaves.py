"""The values in nested containers. Pure."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import copy
from typing import Any

Path = tuple[Hashable, ...]
"""The keys and indices that lead to a value."""


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the path of each value in nested dicts, lists and tuples, and the value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


def map_leaves(function: Callable[[Path, Any], Any], value: Any, path: Path = ()) -> Any:
    """Return a copy of nested dicts, lists and tuples, with ``function(path, leaf)`` for each value in them.

    An OrderedDict stays one, with its attributes: that of a torch module has the versions of its parts in one.
    """
    if isinstance(value, dict):
        mapped = copy(value)
        for key, item in value.items():
            mapped[key] = map_leaves(function, item, (*path, key))  # Counter.update would add to the old value
        return mapped
    if isinstance(value, (list, tuple)):
        return like_sequence(value, [map_leaves(function, item, (*path, index)) for index, item in enumerate(value)])
    return function(path, value)


def like_sequence(value: Sequence[Any], items: list[Any]) -> Any:
    """Return a sequence with ``items`` of the type of ``value``, which may be a named tuple."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)  # type: ignore[call-arg]  # as is
