"""From YAML text to a document that knows where each value was written.

YAML is read as its version 1.2 reads it: ``true`` and ``false`` are the only booleans, ``1:30:00`` and ``2:4`` are text
and not numbers to the base of 60, and so are dates, octal and hexadecimal numbers and numbers with a leading zero.
Nothing but plain values is ever built. (YAML 1.2.2, chapter 10; the YAML library alone reads 1.1.)
"""

import re
from collections.abc import Callable
from typing import Any

import yaml

from hpcelastic.config.document import Document, KeyPath, Mark

TAG = "tag:yaml.org,2002:"

Marker = Callable[[int, str | None], Mark]
"""Makes the mark of a value from its line and, for a single value, its text."""


class JobLoader(yaml.SafeLoader):
    """The safe loader with the resolvers of YAML 1.2."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - the library's own class attribute, replaced for this class


class JobDumper(yaml.SafeDumper):
    """Writes what JobLoader reads, without aliases."""

    yaml_implicit_resolvers = JobLoader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        """Write every value in full."""
        return True


for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"-?(0|[1-9][0-9]{0,999})", list("-0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    JobLoader.add_implicit_resolver(TAG + _name, re.compile(f"(?:{_pattern})$"), _first)

SCALARS: dict[str, Callable[[str], Any]] = {
    TAG + "null": lambda text: None,
    TAG + "bool": lambda text: text.lower() == "true",
    TAG + "int": int,
    TAG + "float": float,
    TAG + "str": str,
}


def read_yaml(text: str, path: KeyPath, marker: Marker, document: Document) -> Any:
    """The value of ``text``, which stands at ``path``; raises YAMLError where it is no YAML."""
    node = yaml.compose(text, Loader=JobLoader)
    if node is None:
        document.marks[path] = marker(1, None)
        return None
    return _value(node, path, marker, document, marker(_line(node), _text(node)))


def _value(node: yaml.Node, path: KeyPath, marker: Marker, document: Document, mark: Mark) -> Any:
    document.marks[path] = mark
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, marker, document)
    if isinstance(node, yaml.SequenceNode):
        return [
            _value(item, (*path, index), marker, document, marker(_line(item), _text(item)))
            for index, item in enumerate(node.value)
        ]
    try:
        return SCALARS[node.tag](node.value)
    except (KeyError, ValueError):
        document.complain(path, f"has the tag {node.tag.replace(TAG, '!!')}; write a plain value, without a tag")
        return None


def _mapping(node: yaml.MappingNode, path: KeyPath, marker: Marker, document: Document) -> dict[str, Any]:
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        key, line = _text(key_node), _line(key_node)
        mark = marker(line, _text(value_node))
        if key is None:
            document.complain(path, "has a list or a mapping as a key; write KEY: VALUE", mark)
        elif key in values:
            document.complain((*path, key), f"given twice, first at line {lines[key]}; keep one of them", mark)
        else:
            lines[key] = line
            values[key] = _value(value_node, (*path, key), marker, document, mark)
    return values


def _text(node: yaml.Node) -> str | None:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


HINTS = {
    r"'\t'": "indent with spaces, not with tabs",
    "mapping values are not allowed": "quote a value that contains ': ', and check the indentation",
    "could not find expected ':'": "write KEY: VALUE, with a space after the colon",
    "expected <block end>": "check the indentation and the brackets of this line and the one before",
    "expected ',' or": "close the bracket, and put commas between the items",
    "while scanning a quoted scalar": "close the quotation mark",
    "cannot start any token": "quote a value that begins with a special character",
    "undefined alias": "quote a value that begins with *",
    "expected a single document": "keep one job in a file, without a line ---",
}


def explain(error: yaml.YAMLError) -> tuple[int, int, str]:
    """Line, column, and what is wrong with what remedy."""
    if not isinstance(error, yaml.MarkedYAMLError):  # a character that YAML forbids anywhere
        return 1, 1, f"is no YAML: {str(error).splitlines()[0]}; remove the character, or write it as an escape"
    told = " ".join(part for part in (error.context, error.problem) if part)
    hint = next((hint for symptom, hint in HINTS.items() if symptom in told), "check the quotes and the indentation")
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    return line, column, f"is no YAML: {told}; {hint}"
