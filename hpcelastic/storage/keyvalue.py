"""A key-value store in a directory, for the workers of a round and for the user's script.

Each key is a versioned register, so set, add and compare_set are exact whatever the mount options are. Only its last
versions are kept, so a million additions take no more space than ten. A key is looked up in the listing of the store's
directory, never by its own name: a client caches for half a minute that a name was absent.

The store of a round is removed two rounds later. A zombie of that round may still write afterwards, and create the
directory or a part of it again. That is harmless: the directory carries the round's number and no later round has that
number, so only another zombie reads it. A zombie that has seen a key finds it missing and gets a StoreError. A zombie
that opens the store only then finds a store without values. Neither looks like a member of a later round.
"""

import hashlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.storage import files
from hpcelastic.storage.register import Register

MAX_VALUE = 1 << 20
"""The maximum size of a value in bytes (UTF-8). Each change writes the whole value, so larger data belong in a file."""

_MAX_QUOTED_KEY = 100
"""The maximum length of a quoted key that is used as a directory's name. A longer key is hashed."""

_KEPT_VERSIONS = 16
_POLL_INTERVALS = (0.01, 1.0)
"""Seconds between two polls of a waiter: the first interval and the maximum."""


class KeyValueStore:
    """Keys (str) and values (str) under ``directory``, shared by all processes that use the same directory.

    If another process may be about to create the directory, create it too before the first access: a client that has
    accessed an absent directory may see nothing for half a minute. An operation that raises StoreError may have taken
    effect.
    """

    def __init__(
        self,
        directory: Path,
        writer: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._writer = writer
        self._clock = clock
        self._registers: dict[str, Register] = {}
        """Registers by directory name. This client has seen each of them."""

    def get(self, key: str) -> str | None:
        """Return the value of ``key``; None if it has none."""
        name = _directory_name(key)
        if name not in self._registers and name not in files.names(self._directory):
            return None
        return self._read_value(name)

    def set(self, key: str, value: str) -> None:
        """Set ``key`` to ``value``; ConfigError if that is not a string or larger than `MAX_VALUE`."""
        text = validated(key, value)
        self._change(key, lambda _: text)

    def add(self, key: str, amount: int) -> int:
        """Add ``amount`` to the number in ``key`` and return the sum; a key without a value counts as 0.

        Raises ConfigError if the key holds no number. After a StoreError ``amount`` may or may not be added: read the
        key before you add again.
        """
        return int(self._change(key, lambda old: str(parse_number(key, old) + amount)) or 0)

    def compare_set(self, key: str, expected: str | None, desired: str) -> str | None:
        """Set ``key`` to ``desired`` if it holds ``expected`` (None: no value); return its value afterwards."""
        text = validated(key, desired)
        old = self.get(key)
        if old != expected:
            return old
        return self._change(key, lambda old: text if old == expected else old)

    def delete(self, key: str) -> bool:
        """Remove the value of ``key``; return False if it had none."""
        if self.get(key) is None:
            return False
        held: list[str | None] = []

        def clear(old: str | None) -> None:
            held.append(old)

        self._change(key, clear)
        return held[-1] is not None

    def keys(self) -> list[str]:
        """Return all keys that have a value, sorted."""
        found = [name for name in files.names(self._directory) if name.startswith(("k-", "h-"))]
        documents = (self._existing_register(name).read().value for name in found)
        return sorted(document["key"] for document in documents if _value(document) is not None)

    def wait(self, keys: Iterable[str], timeout: float) -> None:
        """Wait until every key has a value.

        Raises TimeoutError after ``timeout`` seconds; its message names the keys without a value.
        """
        missing = sorted(frozenset(keys))
        for _ in polls(timeout):
            if not (missing := self.missing(missing)):
                return
        raise TimeoutError(f"waited {timeout:g} s in {self._directory} for {', '.join(missing)}")

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return those of ``keys`` that have no value. One listing finds all keys that were never set."""
        existing = frozenset(files.names(self._directory)) if keys else frozenset()
        names = {key: _directory_name(key) for key in keys}
        return [key for key in keys if names[key] not in existing or self._read_value(names[key]) is None]

    def _read_value(self, name: str) -> str | None:
        return _value(self._existing_register(name).read().value)

    def update(self, key: str, change: Callable[[str | None], str]) -> None:
        """Set ``key`` to ``change(value)``. ``change`` may be called more than once.

        Raises ConfigError if the new value is not a string or larger than `MAX_VALUE`.
        """
        self._change(key, lambda old: validated(key, change(old)))

    def _change(self, key: str, change: Callable[[str | None], str | None]) -> str | None:
        register = self._created_register(_directory_name(key))
        return _value(register.update(lambda old: {"key": key, "value": change(_value(old))}).value)

    def _existing_register(self, name: str) -> Register:
        """Return the register of a key that was listed."""
        if name not in self._registers:
            files.await_visible(self._directory / name)
            self._registers[name] = self._new_register(name)
        return self._registers[name]

    def _created_register(self, name: str) -> Register:
        # Created only once: if the store is removed, a zombie's next change fails instead of creating it again.
        if name not in self._registers:
            files.make_directory(self._directory / name, within=self._directory.parent)
            self._registers[name] = self._new_register(name)
        return self._registers[name]

    def _new_register(self, name: str) -> Register:
        timeout = files.NEGATIVE_CACHE_TIMEOUT
        return Register(self._directory / name, self._writer, _KEPT_VERSIONS, timeout, self._clock)


def polls(timeout: float) -> Iterator[None]:
    """Yield once for each poll of a waiter: at once, at `_POLL_INTERVALS`, and last after ``timeout`` seconds."""
    deadline, interval = time.monotonic() + timeout, _POLL_INTERVALS[0]
    yield
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(
            min(random.uniform(interval / 2, interval), left)
        )  # random, because a whole round may wait for the same key
        interval = min(interval * 2, _POLL_INTERVALS[1])
        yield


def _directory_name(key: str) -> str:
    """Return the name of the directory of ``key``: unique, short enough for every filesystem, of safe characters."""
    quoted = quote(key, safe="", errors="surrogatepass")
    if len(quoted) <= _MAX_QUOTED_KEY:
        return f"k-{quoted}"
    return f"h-{hashlib.sha256(quoted.encode()).hexdigest()}"


def _value(document: Any) -> str | None:
    """Return the value in a register's document ``{"key": ..., "value": ...}``; None if there is no document."""
    if document is None:
        return None
    try:
        value: str | None = document["value"]
    except (TypeError, KeyError):
        raise StoreError(f"a key of the store holds {document!r:.60}, which is not a value of the store") from None
    return value


def validated(key: str, value: str) -> str:
    """Return ``value``. Raises ConfigError if it is not a string, or is larger than `MAX_VALUE`."""
    if not isinstance(value, str):
        raise ConfigError(f"the value for {key!r:.60} is of type {type(value).__name__}; the store holds strings")
    size = len(value.encode("utf-8", "surrogatepass"))
    if size > MAX_VALUE:
        what = f"the value for {key!r:.60} has {size} bytes, more than the {MAX_VALUE} that the store is for"
        raise ConfigError(f"{what}; write it to a file, and share the file's name")
    return value


def parse_number(key: str, value: str | None) -> int:
    """Return the number in ``value``, 0 if it is None. Raises ConfigError if it is no whole number."""
    try:
        return int(value or 0)
    except ValueError:
        raise ConfigError(
            f"add({key!r:.60}): it holds {value!r:.60}, which is not a whole number; use another key"
        ) from None
