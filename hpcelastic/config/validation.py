"""From a document to a configuration: pydantic validates, and this module writes the messages.

Validation is strict, as in JSON: text does not become a number, and a number does not become a boolean. There is one
exception: if a key accepts text, a number is its source text (``time: 90``, ``VERSION: 1.10``).
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from hpcelastic.config.document import Document, KeyPath
from hpcelastic.config.job import JobConfig
from hpcelastic.config.keys import choices, holds_keys, keys, kind_at, split, step, suggestion
from hpcelastic.protocol.settings import NodeRange

SURROGATE = re.compile("[\ud800-\udfff]")
NUMBER = re.compile(r"-?\d+(\.\d*)?")

_UNKNOWN_KEY = "unexpected_keyword_argument"
"""The type of pydantic's error for a key that a group does not have."""


@cache
def adapter() -> TypeAdapter[JobConfig]:
    """Return the single source of the validation and of the JSON Schema."""
    return TypeAdapter(JobConfig)


def validate(document: Document) -> JobConfig | None:
    """Return the configuration, or None. Adds problems to the document."""
    value = _as_written(document.value, JobConfig, (), document)
    try:
        return adapter().validate_json(json.dumps(value))
    except ValidationError as error:
        # One problem for each key: a union has an error for each of its types, and the reader has reported bad values.
        known = {problem.path for problem in document.problems}
        for path, what in map(_describe_error, [*error.errors(), *_further_errors(value, error)]):
            if path not in known:
                document.add_problem(path, what)
                known.add(path)
        return None


def _further_errors(value: Any, first: ValidationError) -> list[ErrorDetails]:
    """Return the errors of ``value`` without its unknown keys: pydantic does not check a group that has one."""
    unknown = [details["loc"] for details in first.errors() if details["type"] == _UNKNOWN_KEY]
    for *groups, key in unknown:
        group = value
        for name in groups:
            group = group.get(name) if isinstance(group, dict) else None
        if isinstance(group, dict):
            group.pop(key, None)
    try:
        if unknown:
            adapter().validate_json(json.dumps(value))
    except ValidationError as error:
        return error.errors()
    return []


def _as_written(value: Any, kind: Any, path: KeyPath, document: Document) -> Any:
    """Turn numbers into text if the key accepts text, and remove empty groups and lists."""
    if isinstance(value, dict):
        return {
            key: _as_written(item, step(kind, key), (*path, key), document)
            for key, item in value.items()
            if item is not None or not _holds_items(step(kind, key))
        }
    if isinstance(value, list):
        return [_as_written(item, step(kind, index), (*path, index), document) for index, item in enumerate(value)]
    if isinstance(value, str) and SURROGATE.search(value):
        document.add_problem(path, "contains half of a surrogate pair, which is not a character; remove it")
        return "?"
    if _is_read_as_text(value, kind, path, document):
        return document.mark(path).text or json.dumps(value)
    return value


def _is_read_as_text(value: Any, kind: Any, path: KeyPath, document: Document) -> bool:
    """True if a number or boolean is read as text. Command-line arguments and variables are always text."""
    always = path[:1] == ("environment",) or (path[:2] == ("entrypoint", "args") and not _calls_function(document))
    if isinstance(value, bool):
        return always
    return isinstance(value, (int, float)) and str in choices(kind) and (always or type(value) not in choices(kind))


def _calls_function(document: Document) -> bool:
    entrypoint = document.value.get("entrypoint")
    return isinstance(entrypoint, dict) and bool(entrypoint.get("function"))


def _holds_items(kind: Any) -> bool:
    return holds_keys(kind) or get_origin(kind) is tuple


def _describe_error(error: ErrorDetails) -> tuple[KeyPath, str]:
    """Return the key of a pydantic error, and a message: what is wrong, and what to do."""
    path = error["loc"]
    if error["type"] == _UNKNOWN_KEY:
        return path, f"no such key; {suggestion(path)}"
    if error["type"] == "missing":
        return path, "is missing; write what to run, such as entrypoint: {script: train.py}"
    if error["type"] == "value_error":
        return _split_message(path, str(error["ctx"]["error"]))
    while path and kind_at(path) is None:  # pydantic appends the member of a union to the path
        path = path[:-1]
    if not path:
        return path, error["msg"]
    return path, f"is {describe_value(error['input'])}; write {expected(kind_at(path), error['input'])}"


def _split_message(path: KeyPath, message: str) -> tuple[KeyPath, str]:
    """Split the message of a dataclass, which begins with the key path or is about the whole group at ``path``."""
    name, verb, rest = next(iter(re.findall(r"^(.+?) (is|has) (.+)$", message, re.DOTALL)), ("", "", ""))
    if name and kind_at(split(name)) is not None:
        return split(name), f"{verb} {rest}"
    return path, message


def describe_value(value: Any) -> str:
    """Describe a wrong value."""
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return f"the text {value if len(value) <= 60 else value[:57] + '...'!r}"
    return "empty" if value is None else json.dumps(value)


def expected(kind: Any, given: Any = None) -> str:
    """Describe the values that a key of this type accepts."""
    if kind is NodeRange:
        return "a number such as 4, or MIN..MAX such as 2..4"
    if is_dataclass(kind):
        return f"its keys below it: {', '.join(keys(kind))}"
    if get_origin(kind) is Mapping:
        return "lines KEY: VALUE below it"
    if get_origin(kind) is tuple:
        return "a list, such as [a, b]"
    *first, last = _describe_types(choices(kind))
    quoted = isinstance(given, str) and NUMBER.fullmatch(given) and last.endswith("number")
    return (f"{', '.join(first)} or {last}" if first else last) + (", without quotes" if quoted else "")


def _describe_types(types: tuple[Any, ...]) -> Iterator[str]:
    names = {str: ["text"], float: ["a number"], bool: ["true", "false"]}
    for kind in types:
        if get_origin(kind) is Literal:
            yield from map(str, get_args(kind))
        elif get_origin(kind) is tuple:
            yield "a list"
        elif get_origin(kind) is Mapping:
            yield "lines KEY: VALUE below it"
        elif kind is not int:
            yield from names[kind]
        elif float not in types:
            yield "a whole number"
