"""The results of the matrix as JSON, and the table of ``docs/compatibility.md`` that is made from them. Pure
functions."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- table: begin, by make matrix -->\n", "<!-- table: end -->\n"

_NAMES = {"bookworm": "Debian 12 (bookworm)", "trixie": "Debian 13 (trixie)", "sid": "Debian unstable (sid)"}
_NAMED = 3
"""Maximum number of failed tests in the table."""

_HEAD = ("environment", "SLURM", "Python", "PyTorch", "what was run", "result", "date", "commit")


@dataclass(frozen=True)
class Piece:
    """The result of one piece in one environment."""

    date: str
    commit: str
    passed: int = 0
    failed: tuple[str, ...] = ()
    """The ids of tests that failed or had an error."""

    skipped: Mapping[str, int] = field(default_factory=dict)
    """Number of skipped tests, by reason."""

    def __str__(self) -> str:
        parts = [f"{self.passed} passed" if self.passed or not self.failed else ""]
        if self.failed:
            more = f" and {len(self.failed) - _NAMED} more, see results.json" if len(self.failed) > _NAMED else ""
            parts += [f"**{len(self.failed)} failed**: {', '.join(self.failed[:_NAMED])}{more}"]
        parts += [f"{count} skipped: {reason}" for reason, count in self.skipped.items()]
        return "; ".join(filter(None, parts))


def read_report(text: str, date: str, commit: str) -> Piece:
    """Return a piece from pytest's JUnit XML."""
    passed, failed, skipped = 0, [], {}
    for case in ElementTree.fromstring(text).iter("testcase"):
        outcome = {child.tag: child for child in case}
        if "failure" in outcome or "error" in outcome:
            failed.append(f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}")
        elif "skipped" in outcome:
            reason = outcome["skipped"].get("message", "")
            skipped[reason] = skipped.get(reason, 0) + 1
        else:
            passed += 1
    return Piece(date, commit, passed, tuple(failed), skipped)


def with_result(results: dict[str, Any], name: str, versions: Mapping[str, str], piece: str, found: Piece) -> None:
    """Add the result of a piece to ``results``. Results of other versions of the environment are removed."""
    known = results.get(name, {})
    if known.get("versions") != dict(versions):
        known = {"versions": dict(versions), "pieces": {}}
    known["pieces"][piece] = asdict(found)
    results[name] = known


def table(results: Mapping[str, Any]) -> str:
    """Return the table's lines, one for each piece."""
    lines = [_HEAD, ("---",) * len(_HEAD)]
    for name, known in results.items():
        versions = known["versions"]
        first = (_NAMES.get(name, name), versions["slurm"] or "none", versions["python"], versions["torch"])
        for piece, found in known["pieces"].items():
            result = Piece(**{**found, "failed": tuple(found["failed"])})
            lines.append((*first, piece, str(result), result.date, result.commit))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def read() -> dict[str, Any]:
    """Return the results so far."""
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


def write(results: Mapping[str, Any]) -> None:
    """Save the results, and update the table of the page."""
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(results) + END + rest.partition(END)[2])
