"""The key with which the agents of a run authenticate their messages."""

import secrets
from pathlib import Path

from hpcelastic.errors import StoreError
from hpcelastic.storage import files

_SIZE = 32


def make_key() -> bytes:
    """Return a new key: 32 random bytes."""
    return secrets.token_bytes(_SIZE)


def shared_key(path: Path) -> bytes:
    """Return the run's key from the file ``path``; the first caller creates it. Only the owner can read the file.

    Raises StoreError if the file cannot be created or read, or contains no key.
    """
    # A name that was opened before it existed stays absent for half a minute: only a name that is listed is opened.
    if path.name not in files.names(path.parent):
        key = make_key()
        if files.publish_new(path, key.hex().encode() + b"\n", private=True):
            return key
        files.await_visible(path)
    with files.as_store_error(path):
        return _key(path, files.read(path))


def _key(path: Path, content: bytes | None) -> bytes:
    try:
        key = bytes.fromhex((content or b"").decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != _SIZE:
        raise StoreError(f"{path}: contains no key; the file is damaged: remove it while no agent of the run is alive")
    return key
