"""A job description before validation: plain values, where each was written, and what is wrong so far. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

from hpcelastic.config.job import NODES
from hpcelastic.errors import ConfigError

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Mark:
    """Where a value was written."""

    origin: str
    """For people who ask where a value came from: ``train.yaml:12``, ``override 1``."""

    place: str = ""
    """How an error begins, when it names this place."""

    key: str = ""
    """The key path that ``place`` names already."""

    line: int = 0
    """Errors are told in this order."""

    text: str | None = None
    """The value as it was written, where YAML would read something else, such as 1.1 for 1.10."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: what, and what to do."""

    mark: Mark
    path: KeyPath
    what: str

    def __str__(self) -> str:
        key = dotted(self.path)
        return ": ".join(part for part in (self.mark.place, "" if key == self.mark.key else key, self.what) if part)


@dataclass
class Document:
    """What a job file and its overrides say; the readers fill it in turn."""

    value: Any = None
    marks: dict[KeyPath, Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def mark(self, path: KeyPath) -> Mark:
        """Where ``path`` was written, or the nearest that holds it."""
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks.get(path, Mark(""))

    def complain(self, path: KeyPath, what: str, mark: Mark | None = None) -> None:
        """Note a problem with the value at ``path``."""
        self.problems.append(Problem(mark or self.mark(path), path, what))


def raise_problems(document: Document) -> None:
    """Raise ConfigError with a line for each problem, if there are any."""
    if document.problems:
        problems = sorted(document.problems, key=lambda problem: problem.mark.line)
        raise ConfigError("\n".join(str(problem) for problem in problems))


def lay_under(document: Document, below: Document, path: KeyPath = ()) -> None:
    """Fill in from ``below`` the keys that ``document`` does not give, each with where it was written."""
    upper, lower = _at(document, path), _at(below, path)
    for key, value in lower.items():
        here = (*path, key)
        if key not in upper or (upper[key] is None and isinstance(value, dict)):
            upper[key] = value
            document.marks.update({at: mark for at, mark in below.marks.items() if at[: len(here)] == here})
        elif isinstance(upper[key], dict) and isinstance(value, dict):
            lay_under(document, below, here)


def _at(document: Document, path: KeyPath) -> Any:
    value = document.value
    for part in path:
        value = value[part]
    return value


def dotted(path: KeyPath) -> str:
    """A key path as people write it: ``slurm.setup[0]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def from_plain(value: object, path: KeyPath, mark: Mark, document: Document) -> Any:
    """Copy a value of Python as YAML could have written it, marking each part; complains of what YAML cannot say."""
    document.marks[path] = mark
    if isinstance(value, Mapping):
        for key in (key for key in value if not isinstance(key, str)):
            document.complain((*path, str(key)), f"the key is {key!r}; a key must be text", mark)
        return {k: from_plain(v, (*path, k), mark, document) for k, v in value.items() if isinstance(k, str)}
    if isinstance(value, (list, tuple)):
        return [from_plain(item, (*path, index), mark, document) for index, item in enumerate(value)]
    if isinstance(value, PathLike):
        return fspath(value)
    if value is not None and not isinstance(value, (str, int, float)):
        document.complain(
            path, f"is of type {type(value).__name__}; give text, a number, true or false, a list or a dict"
        )
        return None
    return value


def expand_nodes(document: Document) -> None:
    """Turn ``nodes: 2..4`` into its two keys, so that each can be overridden; leaves what makes no sense as it is."""
    value = document.value.get("nodes")
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return
    if match := NODES.fullmatch(str(value).strip()):
        document.value["nodes"] = {"min": int(match[1]), "max": int(match[2] or match[1])}
        for key in ("min", "max"):
            document.marks["nodes", key] = document.marks["nodes",]
