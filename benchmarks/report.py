"""Results as medians, ratios and tables. Pure functions."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Seconds = float | None
"""None if it did not happen before the time-out."""

_MARK = "<!-- {}: {}, by make bench -->\n"


@dataclass(frozen=True)
class Table:
    """A table with a head; each row has as many cells."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """Explanation for the reader."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(f"{self.title}: a row of {len(row)} cells under {len(self.head)}: {row}")


def median(values: Iterable[Seconds]) -> float | None:
    """Return the median; None if any value is missing or there is no value."""
    known = list(values)
    if not known or any(value is None for value in known):
        return None
    return float(statistics.median(value for value in known if value is not None))


def ratio(ours: Iterable[Seconds], theirs: Iterable[Seconds]) -> str:
    """Return the median of ``ours`` divided by that of ``theirs``: less than 1 is better; ``-`` if one is missing."""
    a, b = median(ours), median(theirs)
    if a is None or b is None or b == 0:
        return "-"
    return significant(a / b)


def is_hopeless(values: Sequence[Seconds], attempts: int) -> bool:
    """Return whether a measurement is not repeated, because it took too long in so many first ``attempts``."""
    return len(values) >= attempts and all(value is None for value in values)


def attempts_note(parameters: Mapping[str, Any]) -> str:
    """Return what a table says about `is_hopeless`; empty for results from before there was such a limit."""
    attempts = parameters.get("attempts")
    return f"; after {attempts} such results there is no further repetition with this launcher" if attempts else ""


def spread(values: Sequence[Seconds]) -> str:
    """Return the median with the least and the greatest value, and the number of missing values."""
    known = sorted(value for value in values if value is not None)
    never = len(values) - len(known)
    parts = []
    if known:
        middle = significant(statistics.median(known))
        between = f" ({significant(known[0])}–{significant(known[-1])})"
        parts.append(middle + (between if len(known) > 1 else ""))
    if never:
        parts.append(f"never ({never} of {len(values)})")
    return ", ".join(parts) or "-"


def significant(value: float) -> str:
    """Format with three significant digits and at most three decimals."""
    if value == 0:
        return "0"
    size = abs(value)
    decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return f"{value:,.{decimals}f}"


def size(number: float) -> str:
    """Format bytes in a suitable unit."""
    for unit in ("B", "KiB", "MiB"):
        if abs(number) < 1024:
            return f"{significant(number)} {unit}"
        number /= 1024
    return f"{significant(number)} GiB"


def markdown(table: Table) -> str:
    lines = [f"**{table.title}**", "", _line(table.head), _line(["---"] * len(table.head))]
    lines += [_line(row) for row in table.rows]
    return "\n".join([*lines, *(("", table.note) if table.note else ())]) + "\n"


def plain(table: Table) -> str:
    """Format the table for a terminal."""
    rows = [table.head, *table.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([table.title, "-" * len(table.title), *lines, *((table.note,) if table.note else ())]) + "\n"


def spliced(page: str, name: str, text: str) -> str:
    """Return ``page`` with ``text`` between the marks of ``name``. Raises ValueError if it has no such marks."""
    begin, end = _MARK.format(name, "begin"), _MARK.format(name, "end")
    before, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise ValueError(f"the page has no place for {name}: write {begin.strip()} and {end.strip()} into it")
    return before + begin + text + end + after


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
