"""Runs a module's table tests without pytest."""

import inspect
from collections.abc import Iterator
from itertools import product
from types import ModuleType
from typing import Any

from hypothesis import is_hypothesis_test


def failing_row(tests: ModuleType) -> str | None:
    """Return the first row of the tables in ``tests`` that fails; None if none fails."""
    for name, test in inspect.getmembers(tests, inspect.isfunction):
        if name.startswith("test_"):
            for row in _rows(test):
                try:
                    test(**row)
                except BaseException as error:  # also the error of pytest.raises for a missing exception
                    return f"{name}: {error}"
    return None


def _rows(test: Any) -> Iterator[dict[str, Any]]:
    """Yield the arguments of each row like pytest, from the parametrize marks.

    A test that may fail has no row. Nor has one with random examples: what it finds differs from run to run.
    """
    marks = getattr(test, "pytestmark", [])
    if is_hypothesis_test(test) or any(mark.name == "xfail" for mark in marks):
        return
    tables = []
    for mark in marks:
        names, rows = mark.args
        names = [names] if isinstance(names, str) else names
        values = [getattr(row, "values", (row,) if len(names) == 1 else row) for row in rows]
        tables.append([dict(zip(names, row, strict=True)) for row in values])
    for rows in product(*tables):
        yield {name: value for row in rows for name, value in row.items()}
