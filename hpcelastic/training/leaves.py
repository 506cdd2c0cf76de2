"""The values in nested containers. Pure."""

from collections.abc import Callable, Hashable
from copy import copy
from typing import Any

Path = tuple[Hashable, ...]
"""The keys and indices that lead to a value."""


def map_leaves(function: Callable[[Path, Any], Any], value: Any, path: Path = ()) -> Any:
    """Return a copy of nested dicts, lists and tuples, with ``function(path, leaf)`` for each value in them.

    An OrderedDict stays one, with its attributes: that of a torch module has the versions of its parts in one.
    """
    if isinstance(value, dict):
        mapped = copy(value)
        mapped.update({key: map_leaves(function, item, (*path, key)) for key, item in value.items()})
        return mapped
    if isinstance(value, (list, tuple)):
        return type(value)(map_leaves(function, item, (*path, index)) for index, item in enumerate(value))
    return function(path, value)
