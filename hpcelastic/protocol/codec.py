"""JSON of frozen dataclasses, both ways.

Pure. A decoder accepts unknown fields (from a newer writer) and old names of fields (from an older one). It rejects a
missing field without a default, a value of another type, and an unknown member of an enumeration. A thousand agents
read a state of a thousand participants, of which each needs a few. So the reader of a type is built once, and rows are
decoded when they are used.
"""

import dataclasses
import enum
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from hpcelastic.protocol.rows import Rows, defaults_of, is_row, shortened

T = TypeVar("T")
Read: TypeAlias = Callable[[Any], Any]


_OLD_NAME = "old name"
"""The key of a field's metadata that has its old name."""


_PLAIN = {str, int, float, bool, type(None)}
"""The types whose values are their own JSON form."""


def renamed(old: str) -> Mapping[str, str]:
    """Return the metadata of a dataclass field that older documents call ``old``. A document may have either name."""
    return {_OLD_NAME: old}


class DecodeError(ValueError):
    """The JSON is not a value of the expected type; the message names the field."""


class _Mismatch(Exception):
    """A mismatch, and the path to it, innermost step first."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str] = []


def encode(value: Any) -> Any:
    """Return the JSON form (dict, list, str, number, bool, None) of a dataclass and all its values."""
    if type(value) in _PLAIN:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if is_row(value):
            return _encoded_row(value)
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Rows):
        return list(value.rows)
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(encode(key)): encode(item) for key, item in value.items()}
    return value


def _encoded_row(value: Any) -> list[Any]:
    kind: Any = type(value)
    return shortened(kind, [[encode(getattr(value, name)) for name in defaults_of(kind)]])[0]


def decode(kind: type[T], data: Any, place: str = "", *, complete: bool = False) -> T:
    """Return the value of dataclass ``kind`` whose JSON form is ``data``. Raises DecodeError, which names the field.

    With ``complete`` a field must be present even if it has a default.
    """
    try:
        value: T = _reader(kind, complete)(data)  # type: ignore[arg-type]  # a class is hashable
    except _Mismatch as mismatch:
        field = place + "".join(reversed(mismatch.path))
        raise DecodeError(f"{field.lstrip('.') or kind.__name__} {mismatch.what}") from None
    return value


def updated(value: T, data: Mapping[str, Any], **changes: Any) -> T:
    """Return ``value`` with other values of some fields, from their JSON form, and with ``changes``.

    Unknown fields are accepted. Raises DecodeError as `decode` does.
    """
    readers = _field_readers(type(value))  # type: ignore[arg-type]  # a class is hashable
    found = {}
    for name in readers.keys() & data.keys():
        try:
            found[name] = readers[name](data[name])
        except _Mismatch as mismatch:
            raise DecodeError(f"{''.join([name, *reversed(mismatch.path)])} {mismatch.what}") from None
    return dataclasses.replace(value, **found, **changes)  # type: ignore[type-var]  # a dataclass


@cache
def _field_readers(kind: Any) -> dict[str, Read]:
    hints = get_type_hints(kind)
    return {f.name: _reader(hints[f.name], False) for f in dataclasses.fields(kind)}


@cache
def _reader(hint: Any, complete: bool) -> Read:
    """Return the function that reads a value of the type ``hint``."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union(args, complete)
    if origin is Literal:
        return _one_of(args, {choice: choice for choice in args})
    if origin is tuple:
        return _tuple(_reader(args[0], complete))
    if origin is Sequence:
        return _rows(args[0], _tuple(_reader(args[0], complete)))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_key(args[0], complete), _reader(args[1], complete))
    if dataclasses.is_dataclass(hint):
        as_object = _dataclass(hint, complete)
        return _row(hint, as_object) if is_row(hint) else as_object
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _one_of([member.value for member in hint], {member.value: member for member in hint})
    return _float if hint is float else _plain(hint)


def _key(hint: Any, complete: bool) -> Read:
    """Return the function that reads a key of an object, which is a text in JSON."""
    if hint is int:
        return _whole_number
    return _reader(hint, complete) if isinstance(hint, type) and issubclass(hint, enum.Enum) else _unchanged


def _dataclass(kind: Any, complete: bool) -> Read:
    hints = get_type_hints(kind)
    missing = dataclasses.MISSING
    fields = [
        (f.name, _reader(hints[f.name], complete), complete or (f.default is missing and f.default_factory is missing))
        for f in dataclasses.fields(kind)
    ]
    old_names = {f.name: f.metadata[_OLD_NAME] for f in dataclasses.fields(kind) if _OLD_NAME in f.metadata}

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _Mismatch("is not an object")
        values = {}
        for name, read_field, required in fields:
            key = name if name in data else old_names.get(name, name)
            if key not in data:
                if required:
                    raise _located(_Mismatch("is missing"), f".{name}")
                continue
            try:
                values[name] = read_field(data[key])
            except _Mismatch as mismatch:
                raise _located(mismatch, f".{key}") from None
        return kind(**values)

    return read


def _row(kind: Any, read_object: Read) -> Read:
    fields, required, plain = list(_field_readers(kind).items()), _required(kind), _plain_rows(kind)

    def read(data: Any) -> Any:
        if not isinstance(data, list):
            return read_object(data)
        if tuple(map(type, data)) in plain:
            return kind(*data)
        if len(data) < required:
            raise _Mismatch(f"has {len(data)} values, not at least {required}")
        values = []
        for (name, read_field), item in zip(fields, data, strict=False):
            try:
                values.append(read_field(item))
            except _Mismatch as mismatch:
                raise _located(mismatch, f".{name}") from None
        return kind(*values)

    return read


def _required(kind: Any) -> int:
    return sum(f.default is dataclasses.MISSING for f in dataclasses.fields(kind))


@cache
def _plain_rows(kind: Any) -> set[tuple[Any, ...]]:
    """Return the types of the values of rows that need no check of each value, because all fields are plain."""
    kinds = tuple(get_type_hints(kind).values())
    return {kinds[:length] for length in range(_required(kind), len(kinds) + 1)}


def _rows(kind: Any, read_each: Read) -> Read:
    plain = _plain_rows(kind)

    def read(data: Any) -> Sequence[Any]:
        if isinstance(data, list) and {*map(type, data)} <= {list} and {tuple(map(type, it)) for it in data} <= plain:
            return Rows(kind, data)
        values: Sequence[Any] = read_each(data)
        return values

    return read


def _tuple(read_item: Read) -> Read:
    def read(data: Any) -> tuple[Any, ...]:
        items = []
        for item in _expect(list, data):
            try:
                items.append(read_item(item))
            except _Mismatch as mismatch:
                raise _located(mismatch, f"[{len(items)}]") from None
        return tuple(items)

    return read


def _mapping(read_key: Read, read_item: Read) -> Read:
    def read(data: Any) -> dict[Any, Any]:
        items = {}
        for key, item in _expect(dict, data).items():
            try:
                items[read_key(key)] = read_item(item)
            except _Mismatch as mismatch:
                raise _located(mismatch, f".{key}") from None
        return items

    return read


def _unchanged(key: Any) -> Any:
    return key


def _whole_number(key: Any) -> int:
    """Return the number of a key, because in JSON all keys are strings."""
    try:
        return int(_expect(str, key))
    except ValueError:
        raise _Mismatch("is not a whole number") from None


def _union(hints: tuple[Any, ...], complete: bool) -> Read:
    readers = [_reader(hint, complete) for hint in hints if hint is not type(None)]
    optional = type(None) in hints

    def read(data: Any) -> Any:
        if data is None and optional:
            return None
        if len(readers) == 1:
            return readers[0](data)
        for read_option in readers:
            try:
                return read_option(data)
            except _Mismatch:
                continue
        raise _Mismatch(f"is {data!r}, none of {hints}")

    return read


def _one_of(known: Any, members: Mapping[Any, Any]) -> Read:
    def read(data: Any) -> Any:
        if data not in known:  # not in the mapping, because a list is not hashable
            raise _Mismatch(f"is {data!r}, not one of {known}")
        return members[data]

    return read


def _plain(kind: Any) -> Read:
    def read(data: Any) -> Any:
        return data if type(data) is kind else _expect(kind, data)

    return read


def _float(data: Any) -> float:
    try:
        return float(_expect((int, float), data))
    except OverflowError:
        raise _Mismatch("is larger than any float") from None


def _expect(kind: Any, data: Any) -> Any:
    if isinstance(data, kind) and (kind is bool or not isinstance(data, bool)):
        return data
    raise _Mismatch(f"is {data!r}, not {getattr(kind, '__name__', str(kind))}")


def _located(mismatch: _Mismatch, step: str) -> _Mismatch:
    mismatch.path.append(step)
    return mismatch
