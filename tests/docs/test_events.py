"""docs/events.md names every kind of event and each of its fields."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from hpcelastic.protocol.events import KINDS, KnownEvent, UnknownEvent, parse

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
ROWS = re.findall(r"^\| `([^`]+)` \| `(\w+)` \| [^|]+ \| ([^|]*)\|$", PAGE, re.MULTILINE)


def test_each_kind_has_one_row() -> None:
    assert sorted((kind, name) for kind, name, _ in ROWS) == sorted((e.kind, e.__name__) for e in KINDS.values())


@pytest.mark.parametrize("event", KINDS.values(), ids=KINDS)
def test_the_row_has_every_field_in_order(event: type[KnownEvent]) -> None:
    (fields,) = (fields for kind, _, fields in ROWS if kind == event.kind)
    named = re.findall(r"(?:^|; )`(\w+)`", fields)
    assert named == [field.name for field in dataclasses.fields(event)]


def test_the_example_is_an_event() -> None:
    (example,) = re.findall(r"^\{.*\}$", PAGE, re.MULTILINE)
    line = json.loads(example)
    assert not isinstance(parse(line["event"], line), UnknownEvent)
