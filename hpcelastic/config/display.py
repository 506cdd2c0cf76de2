"""Print a resolved configuration as YAML with the origin of each value. The YAML loads as the same configuration."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import yaml

from hpcelastic.config.document import KeyPath, dotted
from hpcelastic.config.resolve import Resolved
from hpcelastic.config.yaml_reader import JobDumper, JobLoader
from hpcelastic.protocol.settings import NodeRange

Row = tuple[str, str]
"""A line of YAML and the origin of its value. The origin is empty for a line that only opens a group."""


def show(resolved: Resolved) -> str:
    """Return YAML with one key on each line, and the origin of its value in an aligned comment."""
    rows = [row for name, value in _items(resolved.config) for row in _rows((name,), value, resolved.origins)]
    width = min(max((len(line) for line, origin in rows if origin), default=0), 60)
    return "".join(f"{line:{width}}  # {origin}\n" if origin else f"{line}\n" for line, origin in rows)


def _rows(path: KeyPath, value: Any, origins: Mapping[str, str]) -> Iterator[Row]:
    key = "  " * (len(path) - 1) + flow_style(path[-1]) + ":"
    if isinstance(value, NodeRange) and not value.spares and value.multiple == 1:
        text = str(value.min) if value.min == value.max else f"{value.min}..{value.max}"
        yield f"{key} {text}", ", ".join(dict.fromkeys(origins[dotted((*path, end))] for end in ("min", "max")))
    elif items := list(_items(value)):
        yield key, ""
        for name, inner in items:
            yield from _rows((*path, name), inner, origins)
    else:
        yield f"{key} {flow_style(value)}", origins[dotted(path)]


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value):
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))
    elif isinstance(value, Mapping):
        yield from value.items()


def flow_style(value: Any) -> str:
    """Return a value on one line: plain text if every YAML version reads it back unchanged, else quoted."""
    if isinstance(value, tuple):
        return f"[{', '.join(flow_style(item) for item in value)}]"
    if isinstance(value, str):
        return value if _is_plain(value) else _quoted(value)
    return json.dumps(dict(value) if isinstance(value, Mapping) else value)


def _is_plain(text: str) -> bool:
    try:
        return text.isprintable() and all(
            yaml.load(f"a: {text}  # b\nc: [{text}]\n", loader) == {"a": text, "c": [text]}  # noqa: S506 - both are safe loaders
            for loader in (JobLoader, yaml.SafeLoader)
        )
    except yaml.YAMLError:
        return False


def _quoted(text: str) -> str:
    return str(yaml.dump(text, Dumper=JobDumper, default_style='"', width=float("inf"))).rstrip("\n")
