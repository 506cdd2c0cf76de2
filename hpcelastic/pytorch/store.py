"""`torch.distributed.Store` in files of a shared directory. It needs no server, and no process has to stay alive.

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
from typing import TypeVar

import torch.distributed as dist

from hpcelastic.errors import ConfigError
from hpcelastic.storage import files
from hpcelastic.storage.keyvalue import KeyValueStore, polls
from hpcelastic.storage.paths import RunPaths
from hpcelastic.training import context

T = TypeVar("T")

DEFAULT_TIMEOUT = timedelta(seconds=300)
"""Maximum time that an operation waits for a key, the same as in TCPStore."""

_instances: "list[RunStore]" = []
"""All instances. torch's C++ objects, such as a PrefixStore, keep only the C++ part of a store alive. Without
its Python part, every call would fail."""


class RunStore(dist.Store):  # type: ignore[name-defined, misc]  # torch has it only if it was built with distributed
    """A store in ``directory``, shared by all processes on all nodes that use the same directory.

    Keys and values are `str` or `bytes`. The maximum size is 1 MiB for a value, and for all values of a queue together.
    Every operation is exact, independent of mount options, and its cost does not depend on the number of earlier
    operations. Threads may share a store. Raises ``StoreError`` if the directory cannot be used, and ``DistStoreError``
    if a wait takes longer than ``timeout``.
    """

    def __init__(self, directory: str | os.PathLike[str], timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        super().__init__()
        self.set_timeout(timeout)
        self._directory = Path(directory)
        writer = f"{socket.gethostname()}:{os.getpid()}"
        self._values, self._queues = (self._open_part(name, writer) for name in ("values", "queues"))
        _instances.append(self)

    def _open_part(self, name: str, writer: str) -> KeyValueStore:
        files.make_directory(self._directory / name)  # before the first access: a client may cache its absence
        return KeyValueStore(self._directory / name, writer)

    def set(self, key: str, value: str | bytes) -> None:
        """Set ``key`` to ``value``."""
        self._values.set(key, _text(value))

    def get(self, key: str) -> bytes:
        """Wait until ``key`` has a value and return it."""
        return _bytes(self._wait_for([key], lambda: self._values.get(key)))

    def add(self, key: str, amount: int) -> int:
        """Add ``amount`` to the number in ``key`` (0 if absent) and return the sum. ValueError if it is no integer."""
        try:
            return self._values.add(key, amount)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set ``key`` to ``desired`` if its value is ``expected``, or if it is absent and ``expected`` is empty.

        Return the value after that; ``expected`` if the key is absent.
        """
        required = _text(expected)
        value = self._values.get(key)
        if value is None and required:
            return _bytes(required)
        result = self._values.compare_set(key, None if value is None else required, _text(desired))
        return _bytes(required if result is None else result)

    def append(self, key: str, value: str | bytes) -> None:
        """Append ``value`` to the value of ``key``."""
        self._values.update(key, lambda old: _text(_bytes(old or "") + _bytes(_text(value))))

    def delete_key(self, key: str) -> bool:
        """Delete ``key`` and return True; return False if it has no value."""
        return self._values.delete(key)

    def num_keys(self) -> int:
        """Return the number of keys that have a value. TCPStore and FileStore also count an internal key."""
        return len(self._values.keys())

    def list_keys(self) -> list[str]:
        """Return all keys that have a value, sorted."""
        return self._values.keys()

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait until each of ``keys`` has a value and return the values."""
        self.wait(keys)
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Set each of ``keys`` in turn."""
        if len(keys) != len(values):
            raise dist.DistStoreError("multiSet keys and values vectors must be of same size")
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether each of ``keys`` has a value or is a queue that is not empty."""
        return not [key for key in self._values.missing(keys) if not self._queue(key)]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until each of ``keys`` has a value or is a queue that is not empty."""
        self._wait_for(keys, lambda: self.check(keys) or None, timeout)

    def has_extended_api(self) -> bool:
        """Return True: append, multi_get, multi_set and queues are supported."""
        return True

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Append ``value`` to the queue."""
        self._queues.update(key, lambda old: json.dumps([*_items(old), _text(value)]))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Remove the first value of the queue and return it. If it is empty, wait, or raise QueueEmptyError at once.

        It waits if ``block`` is True.
        """
        if block:
            return _bytes(self._wait_for([key], lambda: self._pop(key)))
        first = self._pop(key)
        if first is None:
            raise dist.QueueEmptyError("queue is empty")
        return _bytes(first)

    def queue_len(self, key: str) -> int:
        """Return the number of values in the queue; 0 if it does not exist."""
        return len(self._queue(key))

    def clone(self) -> "RunStore":
        """Return another store in the same directory."""
        return RunStore(self._directory, self.timeout)

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

    def _wait_for(self, keys: Sequence[str], poll: Callable[[], T | None], timeout: timedelta | None = None) -> T:
        """Call ``poll`` until its result is not None and return the result."""
        limit = self.timeout if timeout is None else timeout
        for _ in polls(limit.total_seconds()):
            if (result := poll()) is not None:
                return result
        names = ", ".join(f"/{key}" for key in keys)
        raise dist.DistStoreError(f"wait timeout after {limit // timedelta(milliseconds=1)}ms, keys: {names}")


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
