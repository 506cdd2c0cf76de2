"""The key by which the agents of a run know each other's messages."""

import secrets
from pathlib import Path

from hpcelastic.errors import StoreError
from hpcelastic.store import files

_SIZE = 32


def make_key() -> bytes:
    """A key that nobody else has: 32 random bytes."""
    return secrets.token_bytes(_SIZE)


def shared_key(path: Path) -> bytes:
    """The run's key in the file ``path``, made by whoever asks first; only the owner can read it.

    Raises StoreError if the file can't be made or read, or holds no key.
    """
    # A name that was asked for before it existed stays absent for half a minute: only what is listed is opened.
    if path.name not in files.names(path.parent):
        key = make_key()
        if files.publish_new(path, key.hex().encode() + b"\n"):
            return key
        files.await_sight(path)
    with files.explained(path):
        return _key(path, files.read(path))


def _key(path: Path, content: bytes | None) -> bytes:
    try:
        key = bytes.fromhex((content or b"").decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != _SIZE:
        raise StoreError(f"{path}: holds no key; the file was damaged: remove it while no agent of the run lives")
    return key
