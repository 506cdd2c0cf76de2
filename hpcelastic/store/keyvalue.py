"""A key-value store in a directory: what the workers of a round share, and what the user's script keeps for itself.

Each key is a versioned register, so that set, add and compare_set are exact whatever the mounts do. No
version of a key is removed while the directory lives: were version N+1 gone, a writer that slept since it read N could
create it again and believe that it had won.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import quote, unquote

from hpcelastic.store import files
from hpcelastic.store.register import Register

_PACE = (0.01, 0.5)
"""Seconds between two looks of a waiter: at first, and at most."""


class KeyValueStore:
    """Keys (str) and values (str) under ``directory``, shared by all who name the same one."""

    def __init__(self, directory: Path, writer: str) -> None:
        self._directory = directory
        self._writer = writer
        self._registers: dict[str, Register] = {}

    def get(self, key: str) -> str | None:
        """The value of ``key``; None if it has none."""
        value: str | None = self._register(key).read().value
        return value

    def set(self, key: str, value: str) -> None:
        """Give ``key`` a value, whatever it held."""
        self._change(key, lambda _: value)

    def add(self, key: str, amount: int) -> int:
        """Add to the number in ``key``, 0 if it has none, and return the sum."""
        return int(self._change(key, lambda old: str(int(old or 0) + amount)) or 0)

    def compare_set(self, key: str, expected: str | None, desired: str) -> str | None:
        """Set ``key`` to ``desired`` if it holds ``expected`` (None: nothing); return what it holds then."""
        old = self.get(key)
        if old != expected:
            return old
        return self._change(key, lambda old: desired if old == expected else old)

    def delete(self, key: str) -> bool:
        """Take the value away; False if there was none."""
        if self.get(key) is None:
            return False
        self._change(key, lambda _: None)
        return True

    def keys(self) -> list[str]:
        """All keys that have a value, sorted."""
        found = (unquote(name[2:]) for name in files.names(self._directory) if name.startswith("k-"))
        return sorted(key for key in found if self.get(key) is not None)

    def wait(self, keys: Iterable[str], timeout: float) -> None:
        """Return once every key has a value; TimeoutError after ``timeout`` seconds names those that have none."""
        missing, deadline, pace = set(keys), time.monotonic() + timeout, _PACE[0]
        while missing := {key for key in missing if self.get(key) is None}:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"waited {timeout:g} s in {self._directory} for {', '.join(sorted(missing))}")
            time.sleep(min(pace, left))
            pace = min(pace * 2, _PACE[1])

    def _change(self, key: str, change: Callable[[str | None], str | None]) -> str | None:
        register = self._register(key)
        files.make_directory(register.directory)
        version = register.update(change)
        value: str | None = version.value
        return value

    def _register(self, key: str) -> Register:
        if key not in self._registers:
            self._registers[key] = Register(self._directory / f"k-{quote(key, safe='')}", self._writer)
        return self._registers[key]
