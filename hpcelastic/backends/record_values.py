"""A key-value store in the records of a server, with the operations of `hpcelastic.storage.keyvalue.KeyValueStore`."""

import base64
import random
import time
from collections.abc import Callable, Sequence
from urllib.parse import quote, unquote

from hpcelastic.backends.records import KeptRecords
from hpcelastic.errors import StoreError
from hpcelastic.storage.keyvalue import parse_number, validated

_MAX_DELAY = 0.1
"""Maximum number of seconds before the next attempt to change a value that other processes change too."""


class RecordValues:
    """Keys (str) and values (str) in those ``records`` whose keys begin with ``folder``/.

    All processes that use the same records share them, and each change is atomic. Threads may share an object. Values
    are base64 in the server, because the records of some servers are UTF-8 only. An operation that raises StoreError
    may have taken effect.
    """

    def __init__(self, records: KeptRecords, folder: str) -> None:
        self._records = records
        self._prefix = f"{folder}/"

    def get(self, key: str) -> str | None:
        """Return the value of ``key``; None if it has none."""
        record = self._records.get(self._name(key))
        return None if record is None else _decode(record.text)

    def set(self, key: str, value: str) -> None:
        """Set ``key`` to ``value``; ConfigError if it is too large."""
        # Not `Records.set`, which a server may execute twice if the first reply is lost.
        self.update(key, lambda _: value)

    def add(self, key: str, amount: int) -> int:
        """Add ``amount`` to the number in ``key`` (0 if absent) and return the sum; ConfigError if it is no number."""
        return int(self.update(key, lambda old: str(parse_number(key, old) + amount)) or 0)

    def compare_set(self, key: str, expected: str | None, desired: str) -> str | None:
        """Set ``key`` to ``desired`` if it holds ``expected`` (None: no value); return its value afterwards."""
        return self.update(key, lambda old: desired if old == expected else old)

    def delete(self, key: str) -> bool:
        """Remove the value of ``key``; return False if it had none."""
        return self._records.delete(self._name(key))

    def keys(self) -> list[str]:
        """Return all keys that have a value, sorted."""
        return sorted(map(self._key, self._records.all(self._prefix)))

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return those of ``keys`` that have no value. One request reads the values of several keys."""
        if len(keys) == 1:
            return [key for key in keys if self.get(key) is None]
        existing = frozenset(self.keys()) if keys else frozenset()
        return [key for key in keys if key not in existing]

    def update(self, key: str, change: Callable[[str | None], str | None]) -> str | None:
        """Set ``key`` to ``change(value)`` and return the new value. ``change`` may be called more than once.

        It returns None only for a key without a value, which is left as it is.
        """
        name = self._name(key)
        delay = _MAX_DELAY / 16
        while True:
            record = self._records.get(name)
            old = None if record is None else _decode(record.text)
            new = change(old)
            if new is None or validated(key, new) == old:
                return new
            if self._records.compare_set(name, record.token if record else None, _encode(new)):
                return new
            time.sleep(random.uniform(0, delay))  # random, because all ranks may change the same key
            delay = min(2 * delay, _MAX_DELAY)

    def _name(self, key: str) -> str:
        # The letter makes an empty key a name, and no name begins with "_": version 2 of etcd does not list those.
        return f"{self._prefix}k{quote(key, safe='', errors='surrogatepass')}"

    def _key(self, name: str) -> str:
        return unquote(name.removeprefix(self._prefix)[1:], errors="surrogatepass")


def _encode(value: str) -> str:
    return base64.b64encode(value.encode("utf-8", "surrogateescape")).decode()


def _decode(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode("utf-8", "surrogateescape")
    except ValueError as error:  # binascii.Error is one
        raise StoreError(f"a key of the store holds {text!r:.60}, which is not a value of the store") from error
