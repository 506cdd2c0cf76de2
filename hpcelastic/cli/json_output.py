"""The option ``--json`` of the commands that show something. docs/reference/json.md describes what each prints."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from hpcelastic.protocol.codec import encode


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option. ``what`` describes the output."""
    parser.add_argument("--json", action="store_true", help=f"print {what}")


def print_json(value: Any) -> None:
    """Print a dataclass, or a value of such values, as an indented JSON document."""
    print(json.dumps(_finite(encode(value)), indent=1, default=_text), flush=True)


def print_json_line(value: Any) -> None:
    """Print a value in one line."""
    print(json.dumps(_finite(encode(value)), default=_text), flush=True)


def _finite(value: Any) -> Any:
    """Return a JSON value with null in place of numbers that JSON cannot express: a loss may be NaN."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Path) -> str:
    return str(value)
