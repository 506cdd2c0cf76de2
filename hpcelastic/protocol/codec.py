"""JSON of frozen dataclasses, both ways.

Pure. A decoder accepts unknown fields (a newer writer's) and refuses unknown meanings: a missing field without a
default, a value of another type, an enumeration's unknown member.
"""

import dataclasses
import enum
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class DecodeError(ValueError):
    """The JSON does not mean a value of the wanted type; the message names the field."""


def encode(value: Any) -> Any:
    """The JSON form (dict, list, str, number, bool, None) of a dataclass and all that it holds."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    return value


def decode(kind: type[T], data: Any, place: str = "", *, complete: bool = False) -> T:
    """The value of dataclass ``kind`` that ``data`` is the JSON form of; DecodeError says where it is not.

    With ``complete`` a field must be there even if it has a default.
    """
    if not isinstance(data, dict):
        raise DecodeError(f"{place or kind.__name__} is not an object")
    values, hints = {}, _hints(kind)  # type: ignore[arg-type]  # a class is hashable
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # T is a dataclass by contract
        where = f"{place}.{field.name}" if place else field.name
        if field.name in data:
            values[field.name] = _value(hints[field.name], data[field.name], where, complete)
        elif complete or (field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING):
            raise DecodeError(f"{where} is missing")
    return kind(**values)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(hint: Any, data: Any, place: str, complete: bool) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union(args, data, place, complete)
    if origin is Literal:
        return _checked(data in args, data, place, f"one of {args}")
    if origin is tuple:
        return tuple(_value(args[0], item, f"{place}[{i}]", complete) for i, item in enumerate(_of(list, data, place)))
    if origin is not None and issubclass(origin, Mapping):
        return {key: _value(args[1], item, f"{place}.{key}", complete) for key, item in _of(dict, data, place).items()}
    if dataclasses.is_dataclass(hint):
        return decode(hint, data, place, complete=complete)  # type: ignore[arg-type]  # a dataclass type, as just asked
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        known = [member.value for member in hint]
        return hint(_checked(data in known, data, place, f"one of {known}"))
    return _float(_of((int, float), data, place), place) if hint is float else _of(hint, data, place)


def _float(number: int | float, place: str) -> float:
    try:
        return float(number)
    except OverflowError:
        raise DecodeError(f"{place} is larger than any float") from None


def _union(options: tuple[Any, ...], data: Any, place: str, complete: bool) -> Any:
    if data is None and type(None) in options:
        return None
    options = tuple(option for option in options if option is not type(None))
    if len(options) == 1:
        return _value(options[0], data, place, complete)
    for option in options:
        try:
            return _value(option, data, place, complete)
        except DecodeError:
            continue
    raise DecodeError(f"{place} is {data!r}, none of {options}")


def _of(kind: Any, data: Any, place: str) -> Any:
    right = isinstance(data, kind) and (kind is bool or not isinstance(data, bool))
    return _checked(right, data, place, getattr(kind, "__name__", str(kind)))


def _checked(right: bool, data: Any, place: str, wanted: str) -> Any:
    if not right:
        raise DecodeError(f"{place} is {data!r}, not {wanted}")
    return data
