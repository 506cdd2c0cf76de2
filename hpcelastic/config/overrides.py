"""Overrides: single keys of a job, set on the command line or by keyword arguments. Later overrides take precedence."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from hpcelastic.config.document import (
    Document,
    KeyPath,
    Mark,
    both_names_given,
    dotted,
    expand_nodes,
    from_plain,
    rename_old_keys,
    warn_of_old_name,
)
from hpcelastic.config.job import RENAMED_KEYS
from hpcelastic.config.keys import holds_keys, kind_at, split
from hpcelastic.config.yaml_reader import explain, read_yaml

OVERRIDE_LINE = 10**9  # a line number that sorts the problems of overrides last

Override = str | tuple[str, object]
"""``"rendezvous.lease=5"``, with a value in YAML; or a key path and a Python value."""


def overrides_from_keywords(keywords: Mapping[str, object]) -> list[tuple[str, object]]:
    """Return keyword arguments as overrides: ``slurm__partition="a"`` sets ``slurm.partition``."""
    return [(name.replace("__", "."), value) for name, value in keywords.items()]


def apply(document: Document, number: int, override: Override) -> None:
    """Set one key; ``number`` counts from 1 and names the override."""
    written = override if isinstance(override, str) else "{}={}".format(*override)
    name, equals, text = written.partition("=")
    mark = Mark(f"override {number}", f"override {number}: {written}", name, line=OVERRIDE_LINE + number)
    path = split(name)
    if not equals or not all(path):
        document.add_problem((), "is not an override; write KEY=VALUE, such as rendezvous.lease=5", mark)
        return
    path = _with_new_name(path, mark, document)
    for key in [key for key in document.marks if key[: len(path)] == path]:
        del document.marks[key]
    if isinstance(override, str):
        value = _from_yaml(text, path, mark, document)
    else:
        value = from_plain(override[1], path, mark, document)
    _set(document, path, value, mark)
    expand_nodes(document)
    rename_old_keys(document)


def check_names(document: Document, overrides: Sequence[Override]) -> None:
    """Add a problem for each key that one override sets by its old name and another one by its new name."""
    names = (override.partition("=")[0] if isinstance(override, str) else override[0] for override in overrides)
    paths = {split(name) for name in names}
    mark = Mark("overrides", "overrides", line=OVERRIDE_LINE)
    for group, renamed in RENAMED_KEYS.items():
        for old, new in renamed.items():
            if {(group, old), (group, new)} <= paths:
                document.add_problem((group, old), both_names_given(group, old, new), mark)


def _with_new_name(path: KeyPath, mark: Mark, document: Document) -> KeyPath:
    """Return the path with the new name of its key, and add a warning if it has the old name."""
    for group, names in RENAMED_KEYS.items():
        for old, new in names.items():
            if path == (group, old):
                warn_of_old_name(group, old, new, mark, document)
                return group, new
    return path


def _from_yaml(text: str, path: KeyPath, mark: Mark, document: Document) -> Any:
    def marker(line: int, written: str | None) -> Mark:
        return Mark(mark.origin, mark.place, mark.key, mark.line, written)

    try:
        return read_yaml(text, path, marker, document)
    except (yaml.YAMLError, RecursionError) as error:
        what = (
            explain(error)[2]
            if isinstance(error, yaml.YAMLError)
            else "is nested without end; remove the alias inside its own anchor"
        )
        document.add_problem(path, f"the value {what}", mark)
        return None


def _set(document: Document, path: KeyPath, value: Any, mark: Mark) -> None:
    """Set ``value`` at ``path``, and create the groups above it. Validation reports a group that is not a mapping."""
    group = document.value
    for depth, part in enumerate(path[:-1], 1):
        if group.get(part) is None:
            group[part] = {}
            document.marks[path[:depth]] = mark
        group = group[part]
        if not isinstance(group, dict):
            if not holds_keys(kind_at(path[:depth])):
                document.add_problem(path, f"{dotted(path[:depth])} has no keys below it; write its whole value", mark)
            return
    group[path[-1]] = value
    document.marks.setdefault(path, mark)
