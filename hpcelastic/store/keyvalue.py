"""A key-value store in a directory: what the workers of a round share, and what the user's script keeps for itself.

Each key is a versioned register, so that set, add and compare_set are exact whatever the mounts do; its last versions
are kept only, so that a million additions cost no more than ten. A key is looked for in the listing of the store's
directory, never by its own name: a client remembers for half a minute that a name was absent.

When the store of a round is removed, two rounds later, a zombie of that round may still write, and bring back the
directory or a part of it. That is no hole: the directory carries the round's number, no later round has that number,
so nobody but another zombie looks there. One that had seen a key finds it gone and gets a StoreError; one that comes
anew finds a store without values. Neither can be taken for a member of a later round.
"""

import contextlib
import hashlib
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.store import files
from hpcelastic.store.locks import LockKind
from hpcelastic.store.paths import RunPaths
from hpcelastic.store.register import Register

MAX_VALUE = 1 << 20
"""Bytes (UTF-8) that a value may have: each change writes the whole value. What is larger belongs into a file."""

_LONGEST_NAME = 100
"""Characters of a quoted key that is a directory's name as it is; a longer one is hashed."""

_KEEP = 16
_PACE = (0.01, 1.0)
"""Seconds between two looks of a waiter: at first, and at most."""


class KeyValueStore:
    """Keys (str) and values (str) under ``directory``, shared by all who name the same one.

    Where another process may be about to make the directory, make it too before you look: a client that has looked in
    vain may see nothing for half a minute. An operation that ends in a StoreError may have taken effect.
    """

    def __init__(
        self,
        directory: Path,
        writer: str,
        lock: LockKind = LockKind.NATIVE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._writer = writer
        self._lock = lock
        self._clock = clock
        self._registers: dict[str, Register] = {}
        """By directory name: those that this client has seen."""

    def get(self, key: str) -> str | None:
        """The value of ``key``; None if it has none."""
        name = _name(key)
        if name not in self._registers and name not in files.names(self._directory):
            return None
        return self._held(name)

    def set(self, key: str, value: str) -> None:
        """Give ``key`` a value, whatever it held; ConfigError if that is no string, or larger than `MAX_VALUE`."""
        checked = _checked(key, value)
        self.update(key, lambda _: checked)

    def add(self, key: str, amount: int) -> int:
        """Add to the number in ``key``, 0 if it has none, and return the sum; ConfigError if it holds something else.

        After a StoreError, whether ``amount`` was added is open: look before you add again.
        """
        return int(self.update(key, lambda old: str(_number(key, old) + amount)) or 0)

    def compare_set(self, key: str, expected: str | None, desired: str) -> str | None:
        """Set ``key`` to ``desired`` if it holds ``expected`` (None: nothing); return what it holds then."""
        checked = _checked(key, desired)
        old = self.get(key)
        if old != expected:
            return old
        return self.update(key, lambda old: checked if old == expected else old)

    def delete(self, key: str) -> bool:
        """Take the value away; False if there was none."""
        if self.get(key) is None:
            return False
        held: list[str | None] = []

        def clear(old: str | None) -> None:
            held.append(old)

        self.update(key, clear)
        return held[-1] is not None

    def keys(self) -> list[str]:
        """All keys that have a value, sorted."""
        found = [name for name in files.names(self._directory) if name.startswith(("k-", "h-"))]
        documents = (self._known(name).read().value for name in found)
        return sorted(document["key"] for document in documents if _value(document) is not None)

    def wait(self, keys: Iterable[str], timeout: float) -> None:
        """Return once every key has a value; TimeoutError after ``timeout`` seconds names those that have none."""
        missing = sorted(frozenset(keys))
        for _ in looks(timeout):
            if not (missing := self.missing(missing)):
                return
        raise TimeoutError(f"waited {timeout:g} s in {self._directory} for {', '.join(missing)}")

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Those of ``keys`` that have no value: one listing answers for all that nobody has set."""
        there = frozenset(files.names(self._directory)) if keys else frozenset()
        return [key for key in keys if _name(key) not in there or self._held(_name(key)) is None]

    def _held(self, name: str) -> str | None:
        return _value(self._known(name).read().value)

    def update(self, key: str, change: Callable[[str | None], str | None]) -> str | None:
        """Let ``key`` hold what ``change`` makes of its value, which may be called more than once; the new value."""
        document = self._made(_name(key)).update(lambda old: {"key": key, "value": change(_value(old))}).value
        return _value(document)

    def _known(self, name: str) -> Register:
        """The register of a key that has been listed."""
        if name not in self._registers:
            files.await_sight(self._directory / name)
            self._registers[name] = self._register(name)
        return self._registers[name]

    def _made(self, name: str) -> Register:
        # Made once: were the store removed, a zombie's next change fails rather than bring it back.
        if name not in self._registers:
            files.make_directory(self._directory / name)
            self._registers[name] = self._register(name)
        return self._registers[name]

    def _register(self, name: str) -> Register:
        return Register(self._directory / name, self._writer, self._lock, _KEEP, files.FORGOTTEN, self._clock)


def looks(timeout: float) -> Iterator[None]:
    """Looks of a waiter, at the pace of `_PACE`: the first at once, the last when ``timeout`` seconds are over."""
    deadline, pace = time.monotonic() + timeout, _PACE[0]
    yield
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(random.uniform(pace / 2, pace), left))  # spread: a whole round waits for the same key
        pace = min(pace * 2, _PACE[1])
        yield


def remove_stores(paths: RunPaths, until: int) -> None:
    """Remove the stores of all rounds up to ``until``, as far as that can be done."""
    with contextlib.suppress(StoreError):
        for name in files.names(paths.stores):
            digits = name.removeprefix("round-")
            if digits.isdigit() and int(digits) <= until:
                shutil.rmtree(paths.stores / name, ignore_errors=True)


def _name(key: str) -> str:
    """The name of the directory of ``key``: one to one, short enough for every filesystem, free of odd characters."""
    quoted = quote(key, safe="", errors="surrogatepass")
    if len(quoted) <= _LONGEST_NAME:
        return f"k-{quoted}"
    return f"h-{hashlib.sha256(quoted.encode()).hexdigest()}"


def _value(document: Any) -> str | None:
    """The value in what a register holds: ``{"key": ..., "value": ...}``, or nothing yet."""
    if document is None:
        return None
    try:
        value: str | None = document["value"]
    except (TypeError, KeyError):
        raise StoreError(f"a key of the store holds {document!r:.60}, which is no value of ours") from None
    return value


def _checked(key: str, value: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"the value for {key!r:.60} is of type {type(value).__name__}; the store holds strings")
    size = len(value.encode("utf-8", "surrogatepass"))
    if size > MAX_VALUE:
        what = f"the value for {key!r:.60} has {size} bytes, more than the {MAX_VALUE} that the store is for"
        raise ConfigError(f"{what}; write it to a file, and share the file's name")
    return value


def _number(key: str, value: str | None) -> int:
    try:
        return int(value or 0)
    except ValueError:
        raise ConfigError(
            f"add({key!r:.60}): it holds {value!r:.60}, which is no whole number; use another key"
        ) from None
