"""Two workers on two clients of one filesystem: one of round 1, which is suspended, and one of round 3.

``python -m tests.filesystems.duel sleeper|newer DIRECTORY`` runs one of them. In each bout the sleeper begins to
publish and is suspended before the next of its steps. The newer one publishes, the sleeper continues, and the newer one
reads the result. They notify each other by names in the same directory, which they find by listing. Each prints its
bouts as JSON.
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hpcelastic.errors import StoreError
from hpcelastic.training.fence import Fence
from hpcelastic.training.publish import publication
from tests.training.stepping import be, stepping

TIMEOUT = 100.0
"""Seconds within which the other worker must have created a name."""

Value = TypeVar("Value")


class Nap:
    """The suspension of a worker before its step number ``at``, counted from 0."""

    def __init__(self, at: int, sleep: Callable[[str], None]) -> None:
        self._at, self._sleep = at, sleep
        self.steps = 0

    def sleep_before(self, step: str) -> None:
        self.steps += 1
        if self.steps == self._at + 1:
            be(None)
            self._sleep(step)
            be(self)


def publish(directory: Path, round: int) -> str:
    """Publish the round's number. Return the error that refused it."""
    try:
        with publication(directory / "latest", Fence("run", round)) as file:
            file.write(str(round).encode())
    except StoreError as error:
        return str(error)
    return ""


def sleeper(root: Path) -> list[dict[str, Any]]:
    bouts: list[dict[str, Any]] = []
    while True:
        number = len(bouts)
        directory = root / str(number)
        stubborn(partial(directory.mkdir, exist_ok=True))
        bout: dict[str, Any] = {}

        def sleep(step: str, number: int = number, bout: dict[str, Any] = bout) -> None:
            bout["before"] = step
            give(root, f"{number}.asleep")
            await_sign(root, f"{number}.published")

        nap = Nap(number, sleep)
        be(nap)
        bout["refused"] = publish(directory, 1)
        be(None)
        if "before" not in bout:
            if bout["refused"]:  # an error of the filesystem at an earlier step
                continue
            give(root, f"{number}.over")
            return bouts
        bouts.append(bout)
        give(root, f"{number}.awake")


def newer(root: Path) -> list[dict[str, Any]]:
    bouts: list[dict[str, Any]] = []
    while await_sign(root, f"{len(bouts)}.asleep", f"{len(bouts)}.over").endswith("asleep"):
        number, directory = len(bouts), root / str(len(bouts))
        refused = insist(directory, 3)
        give(root, f"{number}.published")
        await_sign(root, f"{number}.awake")
        bouts.append({"refused": refused, "latest": stubborn((directory / "latest").read_text)})
    return bouts


def insist(directory: Path, round: int) -> str:
    """Publish in spite of errors of the filesystem."""
    for _ in range(20):
        if not (refused := publish(directory, round)):
            break
    return refused


def give(root: Path, sign: str) -> None:
    stubborn((root / sign).touch)


def await_sign(root: Path, *signs: str) -> str:
    """Wait for one of the names ``signs`` and return it."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        with suppress(OSError):
            names = {path.name for path in root.iterdir()}
            if found := names.intersection(signs):
                return found.pop()
        time.sleep(0.02)
    raise TimeoutError(f"no sign of {signs} in {TIMEOUT:g} s")


def stubborn(call: Callable[[], Value]) -> Value:
    """Return the result of ``call`` as soon as the filesystem permits it."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            return call()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


if __name__ == "__main__":
    with stepping():
        bouts = {"sleeper": sleeper, "newer": newer}[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps(bouts))
