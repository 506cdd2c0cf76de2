"""`torch.distributed.Store` over files of a shared directory: no server, nobody who must stay alive.

It answers as TCPStore does; where that ends its own connection, as when a number is added to a text, this one raises
the exception of torch's FileStore and goes on. torch calls a store from C++ too, by names of its own: those that Python
knows under others have both here. PrefixStore hands neither queues nor list_keys on, to whatever store.
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
"""How long an operation waits for a key, as TCPStore does."""

_alive: "list[RunStore]" = []
"""All that were made. torch's C++ objects, such as a PrefixStore, keep but the half of a store that is theirs: with its
Python half collected, every call would fail."""


class RunStore(dist.Store):  # type: ignore[name-defined, misc]  # torch imports it where it was built with it
    """A store in ``directory``, shared by all processes on all nodes that name the same one.

    Keys and values are `str` or `bytes`, values of up to 1 MiB; a queue, all that is in it. Every operation is exact
    whatever the mounts do, and none costs more for those that were before it. Threads may share one. Raises
    ``StoreError`` where the directory can't be used, ``DistStoreError`` where a wait takes longer than ``timeout``.
    """

    def __init__(self, directory: str | os.PathLike[str], timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        super().__init__()
        self.set_timeout(timeout)
        self._directory = Path(directory)
        writer = f"{socket.gethostname()}:{os.getpid()}"
        self._values, self._queues = (self._part(name, writer) for name in ("values", "queues"))
        _alive.append(self)

    def _part(self, name: str, writer: str) -> KeyValueStore:
        files.make_directory(self._directory / name)  # before anybody looks there, and remembers that it was absent
        return KeyValueStore(self._directory / name, writer)

    def set(self, key: str, value: str | bytes) -> None:
        """Give ``key`` a value, whatever it held."""
        self._values.set(key, _text(value))

    def get(self, key: str) -> bytes:
        """The value of ``key``, once it has one."""
        return _bytes(self._awaited([key], lambda: self._values.get(key)))

    def add(self, key: str, amount: int) -> int:
        """Add to the number in ``key``, 0 if it has none; the sum. ValueError if it holds no whole number."""
        try:
            return self._values.add(key, amount)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set ``key`` to ``desired`` if it holds ``expected``, or is absent and that is empty; what it holds then.

        Of a key that is absent, ``expected``.
        """
        wanted = _text(expected)
        held = self._values.get(key)
        if held is None and wanted:
            return _bytes(wanted)
        then = self._values.compare_set(key, None if held is None else wanted, _text(desired))
        return _bytes(wanted if then is None else then)

    def append(self, key: str, value: str | bytes) -> None:
        """Put ``value`` after what ``key`` holds."""
        self._values.update(key, lambda old: _text(_bytes(old or "") + _bytes(_text(value))))

    def delete_key(self, key: str) -> bool:
        """Take the value away; False if there was none."""
        return self._values.delete(key)

    def num_keys(self) -> int:
        """How many keys have a value; TCPStore and FileStore count one of their own as well."""
        return len(self._values.keys())

    def list_keys(self) -> list[str]:
        """All keys that have a value, sorted."""
        return self._values.keys()

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of ``keys``, once each has one."""
        self.wait(keys)
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Set all ``keys``, one after the other."""
        if len(keys) != len(values):
            raise dist.DistStoreError("multiSet keys and values vectors must be of same size")
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether each of ``keys`` has a value, or is a queue that is not empty."""
        return not [key for key in self._values.missing(keys) if not self._queue(key)]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return once each of ``keys`` has a value, or is a queue that is not empty."""
        self._awaited(keys, lambda: self.check(keys) or None, timeout)

    def has_extended_api(self) -> bool:
        """Whether append, multi_get, multi_set and queues are there: yes."""
        return True

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Put ``value`` at the end of the queue."""
        self._queues.update(key, lambda old: json.dumps([*_items(old), _text(value)]))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the first value out of the queue, once there is one; QueueEmptyError at once if not to ``block``."""
        if block:
            return _bytes(self._awaited([key], lambda: self._pop(key)))
        first = self._pop(key)
        if first is None:
            raise dist.QueueEmptyError("queue is empty")
        return _bytes(first)

    def queue_len(self, key: str) -> int:
        """How many values are in the queue; 0 if there is none."""
        return len(self._queue(key))

    def clone(self) -> "RunStore":
        """Another one on the same directory."""
        return RunStore(self._directory, self.timeout)

    # As PrefixStore and other code of torch in C++ call them.
    deleteKey = delete_key
    getNumKeys = num_keys

    def _queue(self, key: str) -> list[str]:
        return _items(self._queues.get(key))

    def _pop(self, key: str) -> str | None:
        if not self._queue(key):
            return None
        taken: list[str] = []

        def take(old: str | None) -> str:
            taken[:] = _items(old)[:1]
            return json.dumps(_items(old)[1:])

        self._queues.update(key, take)
        return taken[0] if taken else None

    def _awaited(self, keys: Sequence[str], look: Callable[[], T | None], timeout: timedelta | None = None) -> T:
        """What ``look`` finds, once that is not None."""
        limit = self.timeout if timeout is None else timeout
        for _ in polls(limit.total_seconds()):
            if (found := look()) is not None:
                return found
        named = ", ".join(f"/{key}" for key in keys)
        raise dist.DistStoreError(f"wait timeout after {limit // timedelta(milliseconds=1)}ms, keys: {named}")


def run_store() -> RunStore:
    """See `hpcelastic.store`."""
    directory = context().run_dir
    if directory is None:
        what = "hpcelastic.store() is for workers that an agent has started, and HPCELASTIC_RUN_DIR is not set"
        raise ConfigError(f"{what}; elsewhere, hpcelastic.pytorch.RunStore('RUN/facts') opens the store of a run")
    return _shared(RunPaths(directory).facts)


@cache
def _shared(directory: Path) -> RunStore:
    return RunStore(directory)


def _text(value: str | bytes) -> str:
    """As the files hold it: text stays what it is, and every other byte is kept too."""
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _items(queue: str | None) -> list[str]:
    return [] if queue is None else list(json.loads(queue))
