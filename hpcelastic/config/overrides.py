"""Overrides: single keys of a job, set on the command line or by keyword arguments. Later ones win."""

from collections.abc import Mapping
from typing import Any

import yaml

from hpcelastic.config.document import Document, KeyPath, Mark, dotted, expand_nodes, from_plain
from hpcelastic.config.keys import holds_keys, kind_at, split
from hpcelastic.config.yaml_reader import explain, read_yaml

AFTER_THE_FILE = 10**9  # as a line number: the problems of overrides are told last

Override = str | tuple[str, object]
"""``"rendezvous.lease=5"``, its value read as YAML; or a key path and a value of Python."""


def overrides_from_keywords(keywords: Mapping[str, object]) -> list[tuple[str, object]]:
    """Keyword arguments as overrides: ``slurm__partition="a"`` sets ``slurm.partition``."""
    return [(name.replace("__", "."), value) for name, value in keywords.items()]


def apply(document: Document, number: int, override: Override) -> None:
    """Set one key; ``number`` counts from 1 and names the override."""
    written = override if isinstance(override, str) else "{}={}".format(*override)
    name, equals, text = written.partition("=")
    mark = Mark(f"override {number}", f"override {number}: {written}", name, line=AFTER_THE_FILE + number)
    path = split(name)
    if not equals or not all(path):
        document.complain((), "is no override; write KEY=VALUE, such as rendezvous.lease=5", mark)
        return
    for key in [key for key in document.marks if key[: len(path)] == path]:
        del document.marks[key]
    if isinstance(override, str):
        value = _from_yaml(text, path, mark, document)
    else:
        value = from_plain(override[1], path, mark, document)
    _set(document, path, value, mark)
    expand_nodes(document)


def _from_yaml(text: str, path: KeyPath, mark: Mark, document: Document) -> Any:
    def marker(line: int, written: str | None) -> Mark:
        return Mark(mark.origin, mark.place, mark.key, mark.line, written)

    try:
        return read_yaml(text, path, marker, document)
    except (yaml.YAMLError, RecursionError) as error:
        what = explain(error)[2] if isinstance(error, yaml.YAMLError) else "is nested without end; write it out"
        document.complain(path, f"the value {what}", mark)
        return None


def _set(document: Document, path: KeyPath, value: Any, mark: Mark) -> None:
    """Put ``value`` at ``path``, making the groups above it; a group that is no mapping is complained of later."""
    group = document.value
    for depth, part in enumerate(path[:-1], 1):
        if group.get(part) is None:
            group[part] = {}
            document.marks[path[:depth]] = mark
        group = group[part]
        if not isinstance(group, dict):
            if not holds_keys(kind_at(path[:depth])):
                document.complain(path, f"{dotted(path[:depth])} holds no keys; give its whole value", mark)
            return
    group[path[-1]] = value
    document.marks.setdefault(path, mark)
