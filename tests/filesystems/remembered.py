"""The cached files of a client, for the faulty filesystem."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from typing import Any


class Remembered:
    """The cached files of a client. A file that others have replaced can be read completely for a while."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[int, float]] = {}
        self._mutex = threading.Lock()

    def use(self, path: str, age: float, afresh: Callable[[str], Any], again: Callable[[str], Any]) -> Any:
        """Call ``again`` with the file that was there at most ``age`` seconds ago, else ``afresh`` with the path."""
        if not age:
            return afresh(path)
        with self._mutex:
            self._expire(age)
            if path not in self._files and not self._look(path):
                return afresh(path)
            return again(f"/proc/self/fd/{self._files[path][0]}")

    def renew(self, path: str, age: float) -> None:
        """Update the cache after a change of ``path`` by this client itself."""
        with self._mutex:
            if path in self._files:
                os.close(self._files.pop(path)[0])
            if age:
                self._look(path)

    def _look(self, path: str) -> bool:
        try:
            fd = os.open(path, os.O_PATH | os.O_NOFOLLOW)
        except OSError:
            return False
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            return False
        self._files[path] = (fd, time.monotonic())
        return True

    def _expire(self, age: float) -> None:
        """Files are kept in the order of their last use."""
        while self._files:
            path, (fd, since) = next(iter(self._files.items()))
            if time.monotonic() - since < age:
                return
            del self._files[path]
            os.close(fd)
