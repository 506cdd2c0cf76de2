"""The option ``--json`` of the commands that show something. docs/reference/json.md describes what each prints."""

import argparse
import json
from pathlib import Path
from typing import Any

from hpcelastic.protocol.codec import encode


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option. ``what`` describes the output."""
    parser.add_argument("--json", action="store_true", help=f"print {what}")


def print_json(value: Any) -> None:
    """Print a dataclass, or a value of such values, as an indented JSON document."""
    print(json.dumps(encode(value), indent=1, default=_text), flush=True)


def print_json_line(value: Any) -> None:
    """Print a value in one line."""
    print(json.dumps(encode(value), default=_text), flush=True)


def _text(value: Path) -> str:
    return str(value)
