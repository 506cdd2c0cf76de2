"""A job description before validation: plain values, the origin of each value, and the problems so far. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

from hpcelastic.config.job import NODES, RENAMED_KEYS
from hpcelastic.errors import ConfigError

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Mark:
    """The origin of a value."""

    origin: str
    """The origin for a user: ``train.yaml:12``, ``override 1``."""

    place: str = ""
    """The first part of an error message about this place."""

    key: str = ""
    """The key path that ``place`` already contains."""

    line: int = 0
    """Errors are sorted by this number."""

    text: str | None = None
    """The source text of the value. YAML may read it differently: 1.1 for 1.10."""


@dataclass(frozen=True)
class Problem:
    """One problem or warning: what is wrong, and what to do."""

    mark: Mark
    path: KeyPath
    what: str

    def __str__(self) -> str:
        key = dotted(self.path)
        return ": ".join(part for part in (self.mark.place, "" if key == self.mark.key else key, self.what) if part)


@dataclass
class Document:
    """The content of a job file and its overrides. The readers fill it one after another."""

    value: Any = None
    marks: dict[KeyPath, Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def mark(self, path: KeyPath) -> Mark:
        """Return the mark of ``path``, or of the nearest group that contains it."""
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks.get(path, Mark(""))

    def add_problem(self, path: KeyPath, what: str, mark: Mark | None = None) -> None:
        """Add a problem with the value at ``path``."""
        self.problems.append(Problem(mark or self.mark(path), path, what))


def raise_problems(document: Document) -> None:
    """Raise ConfigError with a line for each problem, if there are any."""
    if document.problems:
        problems = sorted(document.problems, key=lambda problem: problem.mark.line)
        raise ConfigError("\n".join(str(problem) for problem in problems))


def merge_defaults(document: Document, below: Document, path: KeyPath = ()) -> None:
    """Add to ``document`` the keys of ``below`` that ``document`` does not contain, with their marks."""
    upper, lower = _at(document, path), _at(below, path)
    for key, value in lower.items():
        here = (*path, key)
        if key not in upper or (upper[key] is None and isinstance(value, dict)):
            upper[key] = value
            document.marks.update({at: mark for at, mark in below.marks.items() if at[: len(here)] == here})
        elif isinstance(upper[key], dict) and isinstance(value, dict):
            merge_defaults(document, below, here)


def _at(document: Document, path: KeyPath) -> Any:
    value = document.value
    for part in path:
        value = value[part]
    return value


def dotted(path: KeyPath) -> str:
    """Return a key path as users write it: ``slurm.setup[0]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def from_plain(value: object, path: KeyPath, mark: Mark, document: Document) -> Any:
    """Copy a Python value as plain YAML values with marks. Adds a problem for a value that YAML cannot express."""
    document.marks[path] = mark
    if isinstance(value, Mapping):
        for key in (key for key in value if not isinstance(key, str)):
            document.add_problem((*path, str(key)), f"the key is {key!r}; write a key that is text", mark)
        return {k: from_plain(v, (*path, k), mark, document) for k, v in value.items() if isinstance(k, str)}
    if isinstance(value, (list, tuple)):
        return [from_plain(item, (*path, index), mark, document) for index, item in enumerate(value)]
    if isinstance(value, PathLike):
        return fspath(value)
    if value is not None and not isinstance(value, (str, int, float)):
        document.add_problem(
            path, f"is of type {type(value).__name__}; use text, a number, true or false, a list or a dict"
        )
        return None
    return value


def expand_nodes(document: Document) -> None:
    """Turn ``nodes: 2..4`` into its two keys, so that each can be overridden. Leaves an invalid value unchanged."""
    value = document.value.get("nodes")
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return
    if match := NODES.fullmatch(str(value).strip()):
        document.value["nodes"] = {"min": int(match[1]), "max": int(match[2] or match[1])}
        for key in ("min", "max"):
            document.marks["nodes", key] = document.marks["nodes",]


def rename_old_keys(document: Document) -> None:
    """Replace the old name of a key by the new one, and add a warning. Adds a problem if both names are given."""
    for group, names in RENAMED_KEYS.items():
        values = document.value.get(group)
        for old, new in names.items():
            if not isinstance(values, dict) or old not in values:
                continue
            value = values.pop(old)
            mark = document.mark((group, old))
            if new in values:
                document.add_problem((group, old), both_names_given(group, old, new), mark)
            else:
                warn_of_old_name(group, old, new, mark, document)
                values[new] = value
                document.marks[group, new] = mark


def warn_of_old_name(group: str, old: str, new: str, mark: Mark, document: Document) -> None:
    """Add a warning for a key that is given under its old name."""
    what = f"is the old name of {group}.{new}; write {group}.{new} instead"
    document.warnings.append(Problem(mark, (group, old), what))


def both_names_given(group: str, old: str, new: str) -> str:
    """Return a message about a key that is given under its old and its new name."""
    return f"is the old name of {group}.{new}, which is given too; remove {group}.{old}"
