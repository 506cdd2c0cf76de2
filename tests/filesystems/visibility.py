"""Measure whether the listings of one client show the names of another: ``visibility DIRECTORY PLACE COUNT``.

The writer (place 0) publishes one name after another, each after the reader has answered the one before or after a
time-out. The reader lists all the time. A name that it first sees together with the next one was missing until the
directory changed again.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from hpcelastic.storage import files
from tests.filesystems.contract import persistently

TIMEOUT = 10.0
"""Seconds for which the writer waits for an answer."""


def publish(names: Path, answers: Path, count: int) -> None:
    for number in range(count):
        publish_name(names, number)
        await_names(answers, number + 1, TIMEOUT)


def watch(names: Path, answers: Path, count: int) -> list[int]:
    """Return the numbers of the names that were not seen before the next name."""
    known, late = 0, []
    while known < count:
        found = await_names(names, known + 1, 3 * TIMEOUT)
        late += range(known, found - 1) if found else range(known, count)
        for number in range(known, found):
            publish_name(answers, number)
        known = found or count
    return late


def publish_name(directory: Path, number: int) -> None:
    persistently(lambda: files.publish_new(directory / str(number), b"\n"))


def await_names(directory: Path, count: int, timeout: float) -> int:
    """Wait for ``count`` names and return their number; 0 if there are fewer after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if (found := len(persistently(lambda: files.names(directory)))) >= count:
            return found
    return 0


def main(root: str, place: str, count: str) -> None:
    names, answers = Path(root) / "names", Path(root) / "answers"
    for directory in (names, answers):
        persistently(lambda directory=directory: files.make_directory(directory))
    print(json.dumps((publish if place == "0" else watch)(names, answers, int(count))))


if __name__ == "__main__":
    main(*sys.argv[1:])
