"""The binary format of the messages between agents. Pure: no socket, no clock, no random number.

A message is a header (magic, format, kind, length of the sender's id), the sender's id, three fields of fixed size
(sequence, version, nonce), and a tag: HMAC-SHA256 over all that precedes it, cut to 16 bytes. Integers are big-endian.
A notification is a UDP datagram of its own; the other kinds follow one another in a TCP stream. After a change, which
is a UDP datagram too, follows the change itself, and the nonce of the message is the tag of that. A newer format has
another format byte, and is dropped here. Its sender cannot notify this agent, and the run works by its files alone.
"""

import hashlib
import hmac
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
    """The purpose of a message."""

    NOTIFICATION = 1
    """There is news, so poll; by UDP."""

    HELLO = 2
    """The initiator names itself, and sends its nonce."""

    ANSWER = 3
    """The responder proves that it has the key and the initiator's nonce, and sends its own nonce."""

    HEARTBEAT = 4
    """The sender is alive. The initiator's first one proves that it has the key and the responder's nonce."""

    CLOSE = 5
    """The sender closes this connection on purpose; it is no failure."""

    TRANSFER = 6
    """The initiator uses this connection for a transfer of data instead of a link. It is its proof too."""

    CHANGE = 7
    """There is a newer version. The rest of the datagram is its difference from the version before; by UDP."""


@dataclass(frozen=True)
class Message:
    """One message.

    ``sequence`` counts up for each sender (notifications) or connection (heartbeats), so that no message counts twice.
    """

    kind: Kind
    sender: str
    sequence: int = 0
    version: int = 0
    nonce: bytes = bytes(NONCE)


def encode(key: bytes, message: Message) -> bytes:
    """Return ``message`` with its tag as bytes; raise ValueError if the sender's id has more than 255 bytes."""
    sender = message.sender.encode()
    if len(sender) > 255:
        raise ValueError(f"{message.sender[:40]}...: a node id must not have more than 255 bytes")
    body = _HEADER.pack(_MAGIC, _FORMAT, message.kind, len(sender)) + sender
    body += _FIELDS.pack(message.sequence, message.version, message.nonce)
    return body + _tag(key, body)


def parse(key: bytes, data: bytes) -> Message | None:
    """Return the message in ``data``; None unless it is exactly one message of this format, made with ``key``."""
    if length(data) != len(data) or not hmac.compare_digest(_tag(key, data[:-_TAG]), data[-_TAG:]):
        return None
    _, _, kind, size = _HEADER.unpack_from(data)
    try:
        sender = data[_HEADER.size : _HEADER.size + size].decode()
        return Message(Kind(kind), sender, *_FIELDS.unpack_from(data, _HEADER.size + size))
    except ValueError:  # the sender has the key, and is of another version
        return None


def encode_change(key: bytes, message: Message, change: bytes) -> bytes:
    """Return the datagram with ``message``, a notification, and the change that leads to its version."""
    bound = replace(message, kind=Kind.CHANGE, nonce=_tag(key, change))
    return encode(key, bound) + change


def parse_datagram(key: bytes, data: bytes) -> tuple[Message, bytes] | None:
    """Return the notification or the change in a datagram, with the bytes that follow it; None as `parse` does."""
    size = length(data)
    message = parse(key, data[:size]) if size else None
    if message is None or size is None:
        return None
    change = data[size:]
    valid = hmac.compare_digest(message.nonce, _tag(key, change)) if message.kind is Kind.CHANGE else not change
    return (message, change) if valid and message.kind in (Kind.NOTIFICATION, Kind.CHANGE) else None


def length(data: bytes) -> int | None:
    """Return the length of the message at the start of ``data``; 0 if not known yet, None if it is no message."""
    if data[: len(_MAGIC)] != _MAGIC[: len(data)]:
        return None
    if len(data) < _HEADER.size:
        return 0
    return _FIXED + data[4] if data[2] == _FORMAT else None


def derive(key: bytes, label: str, *parts: bytes) -> bytes:
    """Return a key for one purpose, bound to ``parts``."""
    joined = b"".join(struct.pack("!I", len(part)) + part for part in (label.encode(), *parts))
    return hmac.digest(key, joined, hashlib.sha256)


class Stream:
    """Splits a TCP stream into messages; buffers at most one incomplete message."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """Yield every complete message, without checking it; yield None and end where the data is no message."""
        self._buffer += data
        while self._buffer:
            size = length(self._buffer)
            if size is None:
                yield None
                return
            if not size or size > len(self._buffer):
                return
            whole, self._buffer = self._buffer[:size], self._buffer[size:]
            yield whole


def _tag(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, body, "sha256")[:_TAG]
