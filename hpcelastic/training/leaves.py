"""The values in nested containers. Pure."""

from collections.abc import Callable, Hashable
from typing import Any

Path = tuple[Hashable, ...]
"""The keys and indices that lead to a value."""


def map_leaves(function: Callable[[Path, Any], Any], value: Any, path: Path = ()) -> Any:
    """Return a copy of nested dicts, lists and tuples, with ``function(path, leaf)`` for each value in them."""
    if isinstance(value, dict):
        return {key: map_leaves(function, item, (*path, key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map_leaves(function, item, (*path, index)) for index, item in enumerate(value))
    return function(path, value)
