"""Directories of which each round has one, such as ``logs/round-0007``."""

import contextlib
import shutil
from pathlib import Path

from hpcelastic.errors import StoreError
from hpcelastic.storage import files


def remove_rounds(parent: Path, until: int) -> None:
    """Remove the directories of all rounds up to ``until``. Errors are ignored."""
    with contextlib.suppress(StoreError):
        for name in files.names(parent) if until > 0 else ():
            digits = name.removeprefix("round-")
            if digits.isdecimal() and int(digits) <= until:
                shutil.rmtree(parent / name, ignore_errors=True)
