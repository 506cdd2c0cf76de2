"""An operation that is interrupted before any of its calls on the filesystem by another function."""

import builtins
import io
import os
from collections.abc import Callable
from typing import Any

import pytest

CALLS = ("open", "write", "fsync", "close", "listdir", "lstat", "link", "symlink", "readlink", "unlink", "replace")


class Steps:
    """A counter of the calls on the filesystem. Before number ``stop``, ``meanwhile`` is called."""

    def __init__(self, stop: int | None = None, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.taken: list[str] = []
        self._stop = stop
        self._meanwhile = meanwhile
        self._elsewhere = False

    def during(self, operation: Callable[[], Any]) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self._traced(name, getattr(os, name)))
            patch.setattr(io, "open", self._traced("open", io.open))  # Path reads by this function
            patch.setattr(builtins, "open", self._traced("open", builtins.open))
            return operation()

    def _traced(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def traced(*args: Any, **more: Any) -> Any:
            if not self._elsewhere:
                if len(self.taken) == self._stop:
                    self._elsewhere = True
                    self._meanwhile()
                    self._elsewhere = False
                self.taken.append(name)
            return call(*args, **more)

        return traced
