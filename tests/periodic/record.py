"""Results of the parts of a check: one JSON line for each run of a part."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.periodic.parts import Part

CHECKOUT = Path(__file__).parents[2]

_RESULTS = {"tests/periodic/weekly.jsonl", "tests/matrix/results.json"}
"""Files that a check itself writes. Results do not depend on them."""


@dataclass(frozen=True)
class Result:
    """One run of a part."""

    part: str
    passed: bool
    seconds: float
    date: str
    """ISO 8601, UTC."""

    commit: str
    """The commit of the checkout, with ``+`` if files differed from it."""

    content: str
    """A digest of the part's sources."""

    outcome: str
    """The last printed line, or the reason why the part was ended."""


class Record:
    """The results in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, result: Result) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as stream:
            stream.write(json.dumps(asdict(result)) + "\n")

    def latest(self) -> dict[str, Result]:
        """Return the last result of each part, by name."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        results = [Result(**json.loads(line)) for line in lines]
        return {result.part: result for result in results}


def holds(result: Result | None, part: Part) -> bool:
    """Return whether ``part`` has passed with the present sources."""
    return result is not None and result.passed and result.content == content(part.sources)


def commit() -> str:
    """Return the short hash of the checkout's commit, with ``+`` if files differ from it."""
    changed = _git("status", "--porcelain")
    return _git("rev-parse", "--short", "HEAD").strip() + ("+" if changed else "")


def content(sources: Sequence[str]) -> str:
    """Return a digest of the files below ``sources`` as they are in the working tree."""
    digest = hashlib.sha256()
    for name in _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *sources).split("\0"):
        path = CHECKOUT / name
        if name not in _RESULTS and path.is_file():
            digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
