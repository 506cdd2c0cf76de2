"""Read a group of settings from ``KEY=VALUE,...`` on the command line. Pure."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_args, get_type_hints

T = TypeVar("T")


def split_pairs(text: str) -> dict[str, str]:
    """Return the values in ``KEY=VALUE,...``.

    Examples:
        >>> split_pairs("action=report, min_limit=60")
        {'action': 'report', 'min_limit': '60'}
    """
    pairs = (pair.partition("=") for pair in filter(None, text.split(",")))
    return {name.strip(): value for name, _, value in pairs}


def read_settings(kind: type[T], values: Mapping[str, str]) -> T:
    """Return the settings ``kind`` with these values, each a number or a word of a list.

    Raises ValueError for an unknown key and for an invalid value.

    Examples:
        >>> from hpcelastic.agent.settings import HangSettings
        >>> read_settings(HangSettings, {"action": "report", "min_limit": "60"}).min_limit
        60.0
    """
    given: dict[str, Any] = {}
    types = get_type_hints(kind)
    for name, value in values.items():
        if name not in types:
            known = ", ".join(field.name for field in fields(kind))  # type: ignore[arg-type]
            raise ValueError(f"{name!r} is not a known key; the keys are {known}")
        words = get_args(types[name])
        if words and value not in words:
            raise ValueError(f"{name} is {value!r}; write {', '.join(words[:-1])} or {words[-1]}")
        try:
            given[name] = value if words else types[name](value)
        except ValueError:
            what = "a whole number" if types[name] is int else "a number"
            raise ValueError(f"{name} is {value!r}, which is not {what}") from None
    return kind(**given)
