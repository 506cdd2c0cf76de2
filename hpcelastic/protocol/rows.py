"""Many values of a dataclass as rows: lists of their fields, as in JSON.

Pure. A state has one row for each node, and an agent needs a few of them.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from operator import itemgetter
from typing import Any, TypeVar, overload

T = TypeVar("T")

_AS_ROW = "__encoded_as_row__"
"""The attribute of a class whose values are encoded as rows."""


def row(kind: type[T]) -> type[T]:
    """Encode the values of a dataclass as lists in the order of the fields, without the last ones that have defaults.

    A state has one for each node. A row takes a third of the space of an object. Objects are decoded too. A field added
    later comes last, and has a default.
    """
    setattr(kind, _AS_ROW, True)
    return kind


def is_row(it: object) -> bool:
    """Return whether ``it`` is a class whose values are encoded as rows, or one of these."""
    return hasattr(it, _AS_ROW)


class Rows(Sequence[T]):
    """A tuple of values of ``kind``, from their rows. The types in the rows are right already.

    Each value is decoded when it is used for the first time.
    """

    def __init__(self, kind: type[T], rows: Sequence[list[Any]]) -> None:
        self.kind, self.rows = kind, rows
        self._values: dict[int, T] = {}
        self._columns: dict[str, list[Any]] = {}
        self._positions: dict[str, Mapping[Any, int]] = {}

    @classmethod
    def of(cls, kind: type[T], values: Iterable[list[Any]]) -> "Rows[T]":
        """Return the values whose fields, all of them in their JSON form, are in these lists."""
        return cls(kind, shortened(kind, [*values]))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(map(self._value, range(len(self.rows))[index]))
        return self._value(range(len(self.rows))[index])

    def __iter__(self) -> Iterator[T]:
        return map(self._value, range(len(self.rows)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rows | tuple) or len(self) != len(other):
            return False
        if not isinstance(other, Rows) or self.kind is not other.kind:
            return tuple(self) == tuple(other)
        pairs = enumerate(zip(self.rows, other.rows, strict=True))
        return all(mine == its or self[index] == other[index] for index, (mine, its) in pairs)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def column(self, name: str) -> list[Any]:
        """Return one field of each value."""
        if name not in self._columns:
            self._columns[name] = self._read_column(name)
        return self._columns[name]

    def positions(self, name: str) -> Mapping[Any, int]:
        """See the function `positions`."""
        if name not in self._positions:
            self._positions[name] = _indices(self.column(name))
        return self._positions[name]

    def _read_column(self, name: str) -> list[Any]:
        defaults, rows = defaults_of(self.kind), self.rows  # type: ignore[arg-type]  # a class is hashable
        index, default = list(defaults).index(name), defaults[name]
        shortest, longest = self._lengths
        if index < shortest:
            return [*map(itemgetter(index), rows)]
        if index >= longest:
            return [default] * len(rows)
        return [row[index] if index < len(row) else default for row in rows]

    @cached_property
    def _lengths(self) -> tuple[int, int]:
        """The lengths of the shortest and of the longest row."""
        lengths = [*map(len, self.rows)]
        return min(lengths, default=0), max(lengths, default=0)

    def _value(self, index: int) -> T:
        if index not in self._values:
            self._values[index] = self.kind(*self.rows[index])
        return self._values[index]


def column(values: Sequence[Any], name: str) -> list[Any]:
    """Return one field of each of the ``values`` of a dataclass, without decoding them if they are `Rows`."""
    return values.column(name) if isinstance(values, Rows) else [getattr(value, name) for value in values]


def positions(values: Sequence[Any], name: str) -> Mapping[Any, int]:
    """Return the index of each of the ``values`` of a dataclass by one field, in which they differ. See `column`."""
    return values.positions(name) if isinstance(values, Rows) else _indices(column(values, name))


def _indices(values: Sequence[Any]) -> Mapping[Any, int]:
    return dict(zip(values, range(len(values)), strict=True))


def shortened(kind: Any, rows: list[list[Any]]) -> list[list[Any]]:
    """Remove the last items of each of the ``rows`` that have their defaults, and return the rows."""
    with_default = rows
    for default in reversed(defaults_of(kind).values()):
        with_default = [row for row in with_default if row[-1] == default]
        for row in with_default:
            row.pop()
    return rows


@cache
def defaults_of(kind: type) -> dict[str, Any]:
    """Return the default of each field of a dataclass, in the order of the fields; MISSING for a field without one."""
    return {field.name: field.default for field in dataclasses.fields(kind)}
