"""The protocol of one end of a connection between two agents, without its socket. Pure: nonces are passed in.

The initiator A and the responder B prove to each other, with fresh nonces, that they have the run's key::

    A -> B   HELLO       A, nonce of A             by the run's key
    B -> A   ANSWER      B, nonce of B             by a key derived from the run's key, A's nonce and both ids
    A -> B   HEARTBEAT   1, version                by the session key: from the run's key, both nonces, both ids
    then     HEARTBEAT   n, version                both ways, each side counts its own; CLOSE ends it on purpose

A may send TRANSFER instead of its first heartbeat. Then the session ends, and the connection belongs to a transfer::

    A -> B   TRANSFER    1                         by the session key
    then     frames      see `hpcelastic.network.transfer`; B sends the first one

B considers the session established at the first heartbeat or at TRANSFER, A at the answer. A recorded message is not
accepted in another connection, and a message sent back to its sender names the wrong sender.
"""

from hpcelastic.network.messages import Kind, Message, Stream, derive, encode, parse


class Session:
    """One end of a session. ``peer`` is the node that we dial; None at the responder, which learns it from HELLO."""

    def __init__(self, key: bytes, node: str, nonce: bytes, peer: str | None = None) -> None:
        self._run_key = key
        self._node = node
        self._nonce = nonce
        self._stream = Stream()
        self._key = b""
        """The session key; empty until both nonces are known."""

        self._sent = 0
        self._received = 0
        self.is_initiator = peer is not None
        self.peer = peer
        self.established = False
        """True once ``peer`` has proved its identity."""

        self.is_transfer = False
        """True once the peer has sent TRANSFER. No message may follow it."""

    @property
    def initiator(self) -> str | None:
        """The node that dialled."""
        return self._node if self.is_initiator else self.peer

    @property
    def transfer_key(self) -> bytes:
        """The key of a transfer over this connection."""
        return derive(self._key, "transfer")

    def hello(self) -> bytes:
        """Return the first message of the initiator."""
        return encode(self._run_key, Message(Kind.HELLO, self._node, nonce=self._nonce))

    def heartbeat(self, version: int) -> bytes:
        """Return the next heartbeat."""
        return self._next_message(Kind.HEARTBEAT, version)

    def close(self) -> bytes:
        """Return the message that ends the session on purpose."""
        return self._next_message(Kind.CLOSE, 0)

    def transfer(self) -> bytes:
        """Return the message with which the initiator starts a transfer, instead of its first heartbeat."""
        return self._next_message(Kind.TRANSFER, 0)

    def receive(self, data: bytes) -> tuple[list[Message], bytes, bool]:
        """Process received data.

        Return the heartbeats and closes in it, the reply to send, and False if it violates the protocol.
        """
        messages: list[Message] = []
        reply = b""
        for whole in self._stream.feed(data):
            message = self._authentic(whole)
            if message is None:
                return messages, reply, False
            if message.kind is Kind.HELLO:
                reply += self._answer(message)
            elif message.kind is Kind.ANSWER:
                self._derive_key(self._nonce, message.nonce)
                self.established = True
            elif message.kind is Kind.TRANSFER:
                self.established = self.is_transfer = True
            else:
                self.established = True
                messages.append(message)
        return messages, reply, True

    def _authentic(self, whole: bytes | None) -> Message | None:
        """Return the message if it is from the peer and is the next one expected."""
        if whole is None or self.is_transfer:
            return None
        if self._key:
            message = parse(self._key, whole)
            valid = message and message.kind in self._expected_kinds and message.sequence == self._received + 1
            self._received += 1
            return message if valid and message and message.sender == self.peer else None
        if self.is_initiator:
            message = parse(self._answer_key(self._nonce, self._node, self.peer or ""), whole)
            return message if message and message.kind is Kind.ANSWER and message.sender == self.peer else None
        message = parse(self._run_key, whole)
        return message if message and message.kind is Kind.HELLO and message.sender != self._node else None

    @property
    def _expected_kinds(self) -> tuple[Kind, ...]:
        """The kinds of the next message, once the session key is known."""
        starts = not self.is_initiator and not self._received
        return (Kind.HEARTBEAT, Kind.CLOSE, Kind.TRANSFER) if starts else (Kind.HEARTBEAT, Kind.CLOSE)

    def _answer(self, hello: Message) -> bytes:
        self.peer = hello.sender
        key = self._answer_key(hello.nonce, hello.sender, self._node)
        self._derive_key(hello.nonce, self._nonce)
        return encode(key, Message(Kind.ANSWER, self._node, nonce=self._nonce))

    def _answer_key(self, nonce: bytes, initiator: str, responder: str) -> bytes:
        return derive(self._run_key, "answer", nonce, initiator.encode(), responder.encode())

    def _derive_key(self, initiator_nonce: bytes, responder_nonce: bytes) -> None:
        nodes = (self._node, self.peer or "") if self.is_initiator else (self.peer or "", self._node)
        initiator, responder = (node.encode() for node in nodes)
        self._key = derive(self._run_key, "session", initiator_nonce, responder_nonce, initiator, responder)

    def _next_message(self, kind: Kind, version: int) -> bytes:
        self._sent += 1
        return encode(self._key, Message(kind, self._node, self._sent, version))
