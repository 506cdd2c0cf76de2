"""What agents say to each other, as bytes. Pure: no socket, no clock, no random number.

A message is a header (magic, format, kind, length of the sender's id), the sender's id, three fields of fixed size
(sequence, version, nonce), and a tag: HMAC-SHA256 over all that precedes it, cut to 16 bytes. Integers are big-endian.
Bells travel alone in UDP datagrams; the other kinds follow one another in a TCP stream. A newer format has another
format byte, and is dropped here: who can't be understood can't ring, and the files carry the run.
"""

import hashlib
import hmac
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

NONCE = 16
"""Bytes in a nonce."""

_HEADER = struct.Struct("!2sBBB")
_FIELDS = struct.Struct(f"!QQ{NONCE}s")
_TAG = 16
_MAGIC = b"hE"
_FORMAT = 1
_FIXED = _HEADER.size + _FIELDS.size + _TAG

LONGEST = _FIXED + 255
"""Bytes in the longest message."""


class Kind(IntEnum):
    """What a message is for."""

    BELL = 1
    """Look again; by UDP."""

    HELLO = 2
    """Who dials says who it is, and gives its nonce."""

    ANSWER = 3
    """Who was dialled proves that it has the key and the caller's nonce, and gives its own."""

    PULSE = 4
    """The sender lives. The caller's first one proves that it has the key and the other's nonce."""

    BYE = 5
    """The sender ends this connection on purpose; it is no failure."""


@dataclass(frozen=True)
class Message:
    """One message; ``sequence`` counts up for each sender (bells) or connection (pulses), so nothing counts twice."""

    kind: Kind
    sender: str
    sequence: int = 0
    version: int = 0
    nonce: bytes = bytes(NONCE)


def encode(key: bytes, message: Message) -> bytes:
    """``message`` with its tag; ValueError if the sender's id has more than 255 bytes."""
    sender = message.sender.encode()
    if len(sender) > 255:
        raise ValueError(f"{message.sender[:40]}...: a node's id has 255 bytes at most")
    body = _HEADER.pack(_MAGIC, _FORMAT, message.kind, len(sender)) + sender
    body += _FIELDS.pack(message.sequence, message.version, message.nonce)
    return body + _tag(key, body)


def parse(key: bytes, data: bytes) -> Message | None:
    """The message in ``data``; None if that is anything but one whole message made with ``key``, of this format."""
    if length(data) != len(data) or not hmac.compare_digest(_tag(key, data[:-_TAG]), data[-_TAG:]):
        return None
    _, _, kind, size = _HEADER.unpack_from(data)
    try:
        sender = data[_HEADER.size : _HEADER.size + size].decode()
        return Message(Kind(kind), sender, *_FIELDS.unpack_from(data, _HEADER.size + size))
    except ValueError:  # somebody with the key, and not of this version
        return None


def length(data: bytes) -> int | None:
    """How long the message is that ``data`` begins with; 0 if that can't be told yet, None if it is no message."""
    if data[: len(_MAGIC)] != _MAGIC[: len(data)]:
        return None
    if len(data) < _HEADER.size:
        return 0
    return _FIXED + data[4] if data[2] == _FORMAT else None


def derive(key: bytes, label: str, *parts: bytes) -> bytes:
    """A key for one purpose, bound to ``parts``."""
    joined = b"".join(struct.pack("!I", len(part)) + part for part in (label.encode(), *parts))
    return hmac.digest(key, joined, hashlib.sha256)


class Stream:
    """Cuts what comes by TCP into messages; holds less than one message of what is incomplete."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """Every whole message, unexamined; None, and no more, where something else comes."""
        self._rest += data
        while self._rest:
            size = length(self._rest)
            if size is None:
                yield None
                return
            if not size or size > len(self._rest):
                return
            whole, self._rest = self._rest[:size], self._rest[size:]
            yield whole


def _tag(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, body, "sha256")[:_TAG]
