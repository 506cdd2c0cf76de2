"""Workers that do one system call at a time, in the order of a test, on a real filesystem."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from hpcelastic.training import publish

STEPS = (
    "mkdir",
    "rmdir",
    "open",
    "scandir",
    "listdir",
    "rename",
    "replace",
    "unlink",
    "symlink",
    "lstat",
    "fsync",
)
"""Functions of ``os`` before each of which a worker may be suspended for any time."""

_here = threading.local()


class Worker(Protocol):
    """A worker that is called before each of its steps, in its own thread, and may take any time."""

    def sleep_before(self, step: str) -> None: ...


def be(worker: Worker | None) -> None:
    """Make the steps of this thread those of ``worker``."""
    _here.worker = worker


@contextlib.contextmanager
def stepping() -> Iterator[None]:
    """Call every `Worker` before each of its steps."""
    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, _told(name, getattr(os, name)))
        patch.setattr(publish_module(), "open", _told("open", open), raising=False)
        yield


def publish_module() -> Any:
    """Return the module. In the package, a function has its name."""
    return sys.modules[publish.__module__]


class Sleeper:
    """A worker that runs ``body`` and is suspended before each of its steps until the test continues it."""

    def __init__(self, body: Callable[[], object]) -> None:
        self._body = body
        self._go, self._asleep = threading.Semaphore(0), threading.Semaphore(0)
        self.steps: list[str] = []
        """The steps that it has begun, with the one before which it is suspended."""

        self.ended = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def step(self, count: int = 1) -> None:
        """Let it do so many steps, or all that are left if there are fewer."""
        for _ in range(count):
            if self.ended:
                return
            self._go.release()
            self._asleep.acquire()

    def finish(self) -> None:
        while not self.ended:
            self.step()
        self._thread.join()

    def _live(self) -> None:
        be(self)
        self._go.acquire()
        try:
            self._body()
        except Exception as error:
            self.error = error
        self.ended = True
        self._asleep.release()

    def sleep_before(self, step: str) -> None:
        self.steps.append(step)
        self._asleep.release()
        self._go.acquire()


@contextlib.contextmanager
def sleepers() -> Iterator[Callable[[Callable[[], object]], Sleeper]]:
    """Make workers that are suspended. All of them are continued at the end. ``fsync`` has no effect here."""
    made: list[Sleeper] = []

    def make(body: Callable[[], object]) -> Sleeper:
        made.append(Sleeper(body))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        with stepping():
            try:
                yield make
            finally:
                for worker in made:
                    worker.finish()


def _told(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def told(*args: Any, **more: Any) -> Any:
        worker = getattr(_here, "worker", None)
        if worker is not None:
            worker.sleep_before(name)
        return call(*args, **more)

    return told
