"""From YAML text to a document with the origin of each value.

YAML is read as version 1.2: ``true`` and ``false`` are the only booleans. ``1:30:00`` and ``2:4`` are text, not numbers
in base 60. Dates, octal and hexadecimal numbers and numbers with a leading zero are text too. Only plain values are
built. (YAML 1.2.2, chapter 10; the YAML library alone reads version 1.1.)
"""

import re
from collections.abc import Callable
from typing import Any

import yaml

from hpcelastic.config.document import Document, KeyPath, Mark

TAG = "tag:yaml.org,2002:"

Marker = Callable[[int, str | None], Mark]
"""Creates the mark of a value from its line and, for a scalar, its text."""


class JobLoader(yaml.SafeLoader):
    """The safe loader with the resolvers of YAML 1.2."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - overrides a class attribute of the library


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
    """Return the value of ``text``, which is at ``path``. Raises YAMLError if it is not valid YAML."""
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
        document.add_problem(path, f"has the tag {node.tag.replace(TAG, '!!')}; write a plain value without a tag")
        return None


def _mapping(node: yaml.MappingNode, path: KeyPath, marker: Marker, document: Document) -> dict[str, Any]:
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        key, line = _text(key_node), _line(key_node)
        mark = marker(line, _text(value_node))
        if key is None:
            document.add_problem(path, "has a list or a mapping as a key; write KEY: VALUE with a text key", mark)
        elif key in values:
            document.add_problem((*path, key), f"is given twice, first at line {lines[key]}; remove one of them", mark)
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
    "expected <block end>": "check the indentation and the brackets of this line and of the line before",
    "expected ',' or": "close the bracket, and write commas between the items",
    "while scanning a quoted scalar": "close the quotation mark",
    "cannot start any token": "quote a value that begins with a special character",
    "undefined alias": "quote a value that begins with *",
    "expected a single document": "write one job in each file, without a line ---",
}


def explain(error: yaml.YAMLError) -> tuple[int, int, str]:
    """Return the line, the column, and a message: what is wrong, and what to do."""
    if not isinstance(error, yaml.MarkedYAMLError):  # a character that YAML does not allow
        return (
            1,
            1,
            f"is not valid YAML: {str(error).splitlines()[0]}; remove the character, or write an escape sequence",
        )
    message = " ".join(part for part in (error.context, error.problem) if part)
    hint = next((hint for symptom, hint in HINTS.items() if symptom in message), "check the quotes and the indentation")
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    return line, column, f"is not valid YAML: {message}; {hint}"
