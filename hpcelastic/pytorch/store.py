"""`torch.distributed.Store` over a key-value store, and the store in files of a shared directory.

The results are those of TCPStore. Where TCPStore closes its own connection, for example if a number is added to a text,
this store raises the exception of torch's FileStore and remains usable. torch also calls a store from C++, in part by
other names than in Python; this store has both. A PrefixStore passes on neither queues nor list_keys, with any store.
"""

import json
import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

import torch.distributed as dist

from hpcelastic.errors import ConfigError
from hpcelastic.storage import files
from hpcelastic.storage.keyvalue import KeyValueStore, polls
from hpcelastic.storage.paths import RunPaths
from hpcelastic.training import context

T = TypeVar("T")

DEFAULT_TIMEOUT = timedelta(seconds=300)
"""Maximum time that an operation waits for a key, the same as in TCPStore."""

_instances: "list[TorchStore]" = []
"""All instances. torch's C++ objects, such as a PrefixStore, keep only the C++ part of a store alive. Without
its Python part, every call would fail."""


class KeyValues(Protocol):
    """Keys and values (str) that processes share. Each change is atomic. Threads may share an object.

    `hpcelastic.storage.keyvalue.KeyValueStore` keeps them in files, `hpcelastic.backends.record_values.RecordValues` in
    a server. Every method may raise StoreError, whether or not it has taken effect.
    """

    def get(self, key: str) -> str | None:
        """Return the value of ``key``; None if it has none."""

    def set(self, key: str, value: str) -> None:
        """Set ``key`` to ``value``. Raises ConfigError if it is too large."""

    def add(self, key: str, amount: int) -> int:
        """Add ``amount`` to the number in ``key`` (0 if absent) and return the sum. ConfigError if it is no number."""

    def compare_set(self, key: str, expected: str | None, desired: str) -> str | None:
        """Set ``key`` to ``desired`` if it holds ``expected`` (None: no value); return its value afterwards."""

    def delete(self, key: str) -> bool:
        """Remove the value of ``key``; return False if it had none."""

    def keys(self) -> list[str]:
        """Return all keys that have a value, sorted."""

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return those of ``keys`` that have no value."""

    def update(self, key: str, change: Callable[[str | None], str]) -> object:
        """Set ``key`` to ``change(value)``. ``change`` may be called more than once. ConfigError as with `set`."""


class WaitTimeout(dist.DistStoreError, LookupError):
    """A wait took longer than its time-out. TCPStore raises DistStoreError then, and torch's EtcdStore LookupError."""


class TorchStore(dist.Store):  # type: ignore[name-defined, misc]  # torch has it only if it was built with distributed
    """A store that keeps its keys in ``values`` and its queues in ``queues``.

    Keys and values are `str` or `bytes`. The maximum size is 1 MiB for a value, and for all values of a queue together.
    Threads may share a store. Raises ``StoreError`` if the place of the values cannot be used; the operation may have
    taken effect. Raises `WaitTimeout`, which is a ``DistStoreError``, if a wait takes longer than ``timeout``.
    """

    def __init__(self, values: KeyValues, queues: KeyValues, timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        super().__init__()
        self.set_timeout(timeout)
        self._values, self._queues = values, queues
        _instances.append(self)

    def set(self, key: str | bytes, value: str | bytes) -> None:
        """Set ``key`` to ``value``."""
        self._values.set(_text(key), _text(value))

    def get(self, key: str | bytes) -> bytes:
        """Wait until ``key`` has a value and return it."""
        return _bytes(self._wait_for([key], lambda: self._values.get(_text(key))))

    def add(self, key: str | bytes, amount: int) -> int:
        """Add ``amount`` to the number in ``key`` (0 if absent) and return the sum. ValueError if it is no integer."""
        try:
            return self._values.add(_text(key), amount)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    def compare_set(self, key: str | bytes, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set ``key`` to ``desired`` if its value is ``expected``, or if it is absent and ``expected`` is empty.

        Return the value after that; ``expected`` if the key is absent.
        """
        required = _text(expected)
        value = self._values.get(_text(key))
        if value is None and required:
            return _bytes(required)
        result = self._values.compare_set(_text(key), None if value is None else required, _text(desired))
        return _bytes(required if result is None else result)

    def append(self, key: str | bytes, value: str | bytes) -> None:
        """Append ``value`` to the value of ``key``."""
        self._values.update(_text(key), lambda old: _text(_bytes(old or "") + _bytes(_text(value))))

    def delete_key(self, key: str | bytes) -> bool:
        """Delete ``key`` and return True; return False if it has no value."""
        return self._values.delete(_text(key))

    def num_keys(self) -> int:
        """Return the number of keys that have a value. TCPStore and FileStore also count an internal key."""
        return len(self._values.keys())

    def list_keys(self) -> list[str]:
        """Return all keys that have a value, sorted."""
        return self._values.keys()

    def multi_get(self, keys: Sequence[str | bytes]) -> list[bytes]:
        """Wait until each of ``keys`` has a value and return the values."""
        self.wait(keys)
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str | bytes], values: Sequence[str | bytes]) -> None:
        """Set each of ``keys`` in turn."""
        if len(keys) != len(values):
            raise dist.DistStoreError("multiSet keys and values vectors must be of same size")
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def check(self, keys: Sequence[str | bytes]) -> bool:
        """Return whether each of ``keys`` has a value or is a queue that is not empty."""
        return all(self._queue(key) for key in self._values.missing([_text(key) for key in keys]))

    def wait(self, keys: Sequence[str | bytes], timeout: timedelta | None = None) -> None:
        """Wait until each of ``keys`` has a value or is a queue that is not empty."""
        self._wait_for(keys, lambda: self.check(keys) or None, timeout)

    def has_extended_api(self) -> bool:
        """Return True: append, multi_get, multi_set and queues are supported."""
        return True

    def queue_push(self, key: str | bytes, value: str | bytes) -> None:
        """Append ``value`` to the queue."""
        self._queues.update(_text(key), lambda old: json.dumps([*_items(old), _text(value)]))

    def queue_pop(self, key: str | bytes, block: bool = True) -> bytes:
        """Remove the first value of the queue and return it. If it is empty, wait, or raise QueueEmptyError at once.

        It waits if ``block`` is True.
        """
        if block:
            return _bytes(self._wait_for([key], lambda: self._pop(_text(key))))
        first = self._pop(_text(key))
        if first is None:
            raise dist.QueueEmptyError("queue is empty")
        return _bytes(first)

    def queue_len(self, key: str | bytes) -> int:
        """Return the number of values in the queue; 0 if it does not exist."""
        return len(self._queue(_text(key)))

    def clone(self) -> "TorchStore":
        """Return another store with the same keys and queues."""
        return TorchStore(self._values, self._queues, self.timeout)

    # The names that PrefixStore and other C++ code of torch use.
    deleteKey = delete_key
    getNumKeys = num_keys

    def _queue(self, key: str) -> list[str]:
        return _items(self._queues.get(key))

    def _pop(self, key: str) -> str | None:
        if not self._queue(key):
            return None
        removed: list[str] = []

        def remove_first(old: str | None) -> str:
            removed[:] = _items(old)[:1]
            return json.dumps(_items(old)[1:])

        self._queues.update(key, remove_first)
        return removed[0] if removed else None

    def _wait_for(
        self, keys: Sequence[str | bytes], poll: Callable[[], T | None], timeout: timedelta | None = None
    ) -> T:
        """Call ``poll`` until its result is not None and return the result."""
        limit = self.timeout if timeout is None else timeout
        for _ in polls(limit.total_seconds()):
            if (result := poll()) is not None:
                return result
        names = ", ".join(f"/{_text(key)}" for key in keys)
        raise WaitTimeout(f"wait timeout after {limit // timedelta(milliseconds=1)}ms, keys: {names}")


class RunStore(TorchStore):
    """A store in ``directory``, shared by all processes on all nodes that use the same directory.

    It needs no server, and no process has to stay alive. Every operation is exact, independent of mount options, and
    its cost does not depend on the number of earlier operations. Raises ``StoreError`` if the directory cannot be used.
    """

    def __init__(self, directory: str | os.PathLike[str], timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        writer = f"{socket.gethostname()}:{os.getpid()}"
        values, queues = (_open_part(Path(directory) / name, writer) for name in ("values", "queues"))
        super().__init__(values, queues, timeout)


def _open_part(directory: Path, writer: str) -> KeyValueStore:
    files.make_directory(directory)  # before the first access: a client may cache its absence
    return KeyValueStore(directory, writer)


def run_store() -> RunStore:
    """See `hpcelastic.store`."""
    directory = context().run_dir
    if directory is None:
        what = "hpcelastic.store() works only in workers that an agent has started, but HPCELASTIC_RUN_DIR is not set"
        raise ConfigError(f"{what}; elsewhere, open the store of a run with hpcelastic.pytorch.RunStore('RUN/facts')")
    return _cached_store(RunPaths(directory).facts)


@cache
def _cached_store(directory: Path) -> RunStore:
    return RunStore(directory)


def _text(value: str | bytes) -> str:
    """Return ``value`` in the form of the files: text is unchanged, and bytes that are not UTF-8 are preserved."""
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _items(queue: str | None) -> list[str]:
    return [] if queue is None else list(json.loads(queue))
