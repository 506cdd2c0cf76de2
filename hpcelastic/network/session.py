"""One end of a connection between two agents, without its socket. Pure: nonces are passed in.

The caller A and the called B prove to each other, with fresh nonces, that they have the run's key::

    A -> B   HELLO   A, nonce of A             by the run's key
    B -> A   ANSWER  B, nonce of B             by a key made of the run's, A's nonce, and who talks to whom
    A -> B   PULSE   1, version                by the session's key: made of the run's, both nonces, both ids
    then     PULSE   n, version                both ways, each counting its own; BYE ends it on purpose

B holds A for established at the first pulse, A holds B for established at the answer. Nothing of one connection is
worth anything in another, and a message sent back to its sender names the wrong sender.
"""

from hpcelastic.network.messages import Kind, Message, Stream, derive, encode, parse


class Session:
    """What one end says and takes in; ``peer`` is whom we dial, or None where who dials us will say so."""

    def __init__(self, key: bytes, node: str, nonce: bytes, peer: str | None = None) -> None:
        self._run_key = key
        self._node = node
        self._nonce = nonce
        self._stream = Stream()
        self._key = b""
        """The session's; empty until both nonces are known."""

        self._said = 0
        self._taken = 0
        self.caller = peer is not None
        self.peer = peer
        self.established = False
        """True once ``peer`` has proved who it is."""

    @property
    def dialler(self) -> str | None:
        """The node that made the connection."""
        return self._node if self.caller else self.peer

    def hello(self) -> bytes:
        """The caller's first words."""
        return encode(self._run_key, Message(Kind.HELLO, self._node, nonce=self._nonce))

    def pulse(self, version: int) -> bytes:
        return self._say(Kind.PULSE, version)

    def bye(self) -> bytes:
        return self._say(Kind.BYE, 0)

    def take(self, data: bytes) -> tuple[list[Message], bytes, bool]:
        """Take in what came: the pulses and goodbyes in it, what to reply, and False if it is not what a peer says."""
        said: list[Message] = []
        reply = b""
        for whole in self._stream.feed(data):
            message = self._authentic(whole)
            if message is None:
                return said, reply, False
            if message.kind is Kind.HELLO:
                reply += self._answer(message)
            elif message.kind is Kind.ANSWER:
                self._agree(self._nonce, message.nonce)
                self.established = True
            else:
                self.established = True
                said.append(message)
        return said, reply, True

    def _authentic(self, whole: bytes | None) -> Message | None:
        """The message, if it is the peer's and its turn has come."""
        if whole is None:
            return None
        if self._key:
            message = parse(self._key, whole)
            valid = message and message.kind in (Kind.PULSE, Kind.BYE) and message.sequence == self._taken + 1
            self._taken += 1
            return message if valid and message and message.sender == self.peer else None
        if self.caller:
            message = parse(self._answer_key(self._nonce, self._node, self.peer or ""), whole)
            return message if message and message.kind is Kind.ANSWER and message.sender == self.peer else None
        message = parse(self._run_key, whole)
        return message if message and message.kind is Kind.HELLO and message.sender != self._node else None

    def _answer(self, hello: Message) -> bytes:
        self.peer = hello.sender
        key = self._answer_key(hello.nonce, hello.sender, self._node)
        self._agree(hello.nonce, self._nonce)
        return encode(key, Message(Kind.ANSWER, self._node, nonce=self._nonce))

    def _answer_key(self, nonce: bytes, caller: str, called: str) -> bytes:
        return derive(self._run_key, "answer", nonce, caller.encode(), called.encode())

    def _agree(self, caller_nonce: bytes, called_nonce: bytes) -> None:
        caller, called = (self._node, self.peer or "") if self.caller else (self.peer or "", self._node)
        self._key = derive(self._run_key, "session", caller_nonce, called_nonce, caller.encode(), called.encode())

    def _say(self, kind: Kind, version: int) -> bytes:
        self._said += 1
        return encode(self._key, Message(kind, self._node, self._said, version))
