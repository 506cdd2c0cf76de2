"""A transfer of bulk data between two agents, over a TCP connection of its own.

Both ends send headers (JSON objects) and data (bytes) in frames: kind, size of the body, body, tag. Integers are
big-endian. The tag is HMAC-SHA256, cut to 16 bytes, over the number of the frame and all that precedes the tag. Each
direction has its own key and its own numbers. So an end refuses a frame that was changed, left out, repeated, moved or
sent back to its sender.

The first frame is an empty header from the responder: it is ready. Until then the initiator sends no frame, so the
thread that has read the handshake has read nothing of the transfer.
"""

import contextlib
import hmac
import json
import secrets
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from hpcelastic.network import sockets
from hpcelastic.network.channel import Session
from hpcelastic.network.messages import NONCE, derive
from hpcelastic.protocol.peers import Peer

TIMEOUT = 10.0
"""Seconds without any progress after which a transfer fails."""

MAX_HEADER = 64 * 1024
"""Bytes in the JSON text of a header, at most."""

CHUNK = 1024 * 1024
"""Bytes of data in one frame, except in the last one."""

_CONNECT_TIMEOUT = 3.0
"""Seconds in which the peer's kernel has to answer. The kernel repeats a lost packet after one second."""

_HEAD = struct.Struct("!BI")
_NUMBER = struct.Struct("!Q")
_TAG = 16
_HEADER, _DATA = 1, 2


class TransferError(Exception):
    """A transfer has failed, and its connection is closed. The message names the peer and the cause."""


class Transfer:
    """One end of a transfer with the node ``peer``, used by one thread at a time.

    ``sock`` is connected, and belongs to the transfer from now on. ``key`` is `Session.transfer_key`. The initiator
    waits until the responder is ready. All calls block. They raise TransferError after `TIMEOUT` without progress, at
    the end of the connection, and for a frame that is not authentic or not the expected one.
    """

    def __init__(self, sock: socket.socket, key: bytes, peer: str, initiator: bool) -> None:
        self.peer = peer
        self._sock = sock
        self._where = peer
        keys = derive(key, "initiator"), derive(key, "responder")
        self._send_key, self._receive_key = keys if initiator else reversed(keys)
        self._sent = 0
        self._received = 0
        with self._errors():
            self._where = _where(peer, *sock.getpeername()[:2])
            sockets.configure_transfer(sock, TIMEOUT)
        if initiator:
            self.receive()
        else:
            self.send({})

    def __enter__(self) -> "Transfer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def limit(self, rate: int) -> None:
        """Send at most ``rate`` bytes a second from now on; 0 for no limit."""
        with self._errors():
            sockets.limit_rate(self._sock, rate)

    def send(self, header: Mapping[str, Any], memory: memoryview | None = None) -> None:
        """Send a header, and then the bytes of ``memory``, which must not change meanwhile.

        It returns once the kernel has all. Only a header from the peer shows what has arrived. Raises ValueError if the
        header has more than `MAX_HEADER` bytes.
        """
        text = json.dumps(header).encode()
        if len(text) > MAX_HEADER:
            raise ValueError(f"the header has {len(text)} bytes; at most {MAX_HEADER} are allowed")
        with self._errors():
            self._send_frame(_HEADER, memoryview(text))
            for chunk in _chunks(memory) if memory else ():
                self._send_frame(_DATA, chunk)

    def receive(self, busy: float = 0.0) -> dict[str, Any]:
        """Return the next header. The peer may be ``busy`` for some seconds before it sends it."""
        with self._errors():
            self._sock.settimeout(TIMEOUT + busy)
            head = self._read(memoryview(bytearray(_HEAD.size)))
            kind, size = _HEAD.unpack(head)
            if kind != _HEADER or size > MAX_HEADER:
                raise ValueError("sent something else than a header")
            text = self._read_body(head, memoryview(bytearray(size)))
            header = json.loads(bytes(text))
            if not isinstance(header, dict):
                raise ValueError("sent a header that is no JSON object")
            self._sock.settimeout(TIMEOUT)
            return header

    def receive_into(self, memory: memoryview) -> None:
        """Fill ``memory``, a view of bytes, with the data that the last header announced.

        After an error its content is undefined.
        """
        with self._errors():
            for chunk in _chunks(memory):
                head = self._read(memoryview(bytearray(_HEAD.size)))
                if head != _HEAD.pack(_DATA, len(chunk)):
                    raise ValueError("sent something else than the data of the announced size")
                self._read_body(head, chunk)

    def close(self) -> None:
        """Close the connection. May be called repeatedly. The kernel still delivers what was sent."""
        self._sock.close()

    def _send_frame(self, kind: int, body: memoryview) -> None:
        head = _HEAD.pack(kind, len(body))
        tag = _tag(self._send_key, self._sent, head, body)
        self._sent += 1
        self._write(memoryview(head), socket.MSG_MORE)
        self._write(body, socket.MSG_MORE)
        self._write(memoryview(tag))

    def _read_body(self, head: memoryview, body: memoryview) -> memoryview:
        """Fill ``body`` and check the frame."""
        self._read(body)
        received = self._read(memoryview(bytearray(_TAG)))
        if not hmac.compare_digest(received, _tag(self._receive_key, self._received, head, body)):
            raise ValueError("sent a frame that is not authentic")
        self._received += 1
        return body

    def _write(self, rest: memoryview, flags: int = 0) -> None:
        while rest:  # not sendall(): its time-out is that of the whole call
            rest = rest[self._sock.send(rest, flags) :]

    def _read(self, place: memoryview) -> memoryview:
        """Fill ``place`` and return it."""
        rest = place
        while rest:
            size = self._sock.recv_into(rest)
            if not size:
                raise ConnectionError("closed the connection")
            rest = rest[size:]
        return place

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Close the connection if the calls inside fail. So the peer learns of it, too."""
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.close)
            with _as_transfer_error(self._where):
                yield
            on_failure.pop_all()


def dial(key: bytes, node: str, peer: Peer, rate: int) -> Transfer:
    """Start a transfer from ``node`` with ``peer``, and send at most ``rate`` bytes a second; 0 for no limit.

    ``key`` is that of the run. Raises TransferError if the peer cannot be reached, or does not take part.
    """
    with contextlib.ExitStack() as on_failure:
        with _as_transfer_error(_where(peer.node, peer.address, peer.port)):
            sock = on_failure.enter_context(_connected(peer))
            session = Session(key, node, secrets.token_bytes(NONCE), peer.node)
            _handshake(sock, session)
        transfer = Transfer(sock, session.transfer_key, peer.node, initiator=True)
        transfer.limit(rate)
        on_failure.pop_all()
        return transfer


def _connected(peer: Peer) -> socket.socket:
    if not sockets.valid_endpoint(peer.address, peer.port):
        raise ValueError("is not an address and a port")
    sock = socket.create_connection((peer.address, peer.port), _CONNECT_TIMEOUT)
    sockets.configure(sock)
    sockets.configure_transfer(sock, TIMEOUT)
    return sock


def _handshake(sock: socket.socket, session: Session) -> None:
    sock.sendall(session.hello())
    while not session.established:
        data = sock.recv(4096)
        if not data:
            raise ConnectionError("closed the connection")
        if not session.receive(data)[2]:
            raise ValueError("is another agent, or has another key")
    sock.sendall(session.transfer())


@contextlib.contextmanager
def _as_transfer_error(where: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise TransferError(f"{where}: timed out") from error
    except OSError as error:
        raise TransferError(f"{where}: {error.strerror or error}") from error
    except ValueError as error:
        raise TransferError(f"{where}: {error}") from error


def _where(node: str, address: str, port: int) -> str:
    return f"{node} at {sockets.endpoint(address, port)}"


def _chunks(memory: memoryview) -> Iterator[memoryview]:
    return (memory[start : start + CHUNK] for start in range(0, len(memory), CHUNK))


def _tag(key: bytes, number: int, head: bytes | memoryview, body: memoryview) -> bytes:
    tag = hmac.new(key, _NUMBER.pack(number) + head, "sha256")
    tag.update(body)
    return tag.digest()[:_TAG]
