from collections.abc import Callable

import pytest

from hpcelastic.network.channel import Session
from hpcelastic.network.messages import Kind, Message, encode

KEY = bytes(range(32))


def nonce(number: int) -> bytes:
    return bytes([number]) * 16


def ends(
    initiator: str = "a@1", responder: str = "b@1", wanted: str = "b@1", key: bytes = KEY
) -> tuple[Session, Session]:
    return Session(KEY, initiator, nonce(1), wanted), Session(key, responder, nonce(2))


def handshake() -> tuple[Session, Session]:
    initiator, responder = ends()
    _, answer, valid = responder.receive(initiator.hello())
    assert valid and answer and not responder.established
    assert initiator.receive(answer) == ([], b"", True)
    return initiator, responder


def test_both_ends_authenticate() -> None:
    initiator, responder = handshake()
    assert initiator.established and not responder.established, "the initiator has yet to prove that it knows our nonce"
    messages, reply, valid = responder.receive(initiator.heartbeat(5))
    assert [message.version for message in messages] == [5] and not reply and valid
    assert responder.established and responder.peer == "a@1"
    assert initiator.initiator == responder.initiator == "a@1"


def test_heartbeats_are_sent_both_ways_with_versions() -> None:
    initiator, responder = handshake()
    responder.receive(initiator.heartbeat(0))
    for version in (3, 3, 9):
        assert [it.version for it in initiator.receive(responder.heartbeat(version))[0]] == [version]
        assert [it.version for it in responder.receive(initiator.heartbeat(version))[0]] == [version]


def test_a_close_is_reported() -> None:
    initiator, responder = handshake()
    messages, _, valid = responder.receive(initiator.heartbeat(0) + initiator.close())
    assert [it.kind for it in messages] == [Kind.HEARTBEAT, Kind.CLOSE] and valid


def test_a_transfer_replaces_the_first_heartbeat() -> None:
    initiator, responder = handshake()
    assert responder.receive(initiator.transfer()) == ([], b"", True)
    assert responder.established and responder.is_transfer
    assert initiator.transfer_key == responder.transfer_key != handshake()[0]._key


def test_the_key_of_a_transfer_is_that_of_its_connection() -> None:
    initiator, _ = handshake()
    other = Session(KEY, "b@1", nonce(3))
    later = Session(KEY, "a@1", nonce(1), "b@1")
    later.receive(other.receive(later.hello())[1])
    assert later.transfer_key == other.transfer_key != initiator.transfer_key


@pytest.mark.parametrize("first", [lambda it: it.heartbeat(0), Session.transfer], ids=["heartbeat", "transfer"])
def test_a_transfer_is_the_first_message_or_none(first: Callable[[Session], bytes]) -> None:
    initiator, responder = handshake()
    assert responder.receive(first(initiator))[2]
    assert not responder.receive(initiator.transfer())[2]


def test_no_message_follows_a_transfer() -> None:
    initiator, responder = handshake()
    assert not responder.receive(initiator.transfer() + initiator.heartbeat(0))[2]


def test_the_responder_starts_no_transfer() -> None:
    initiator, responder = handshake()
    assert not initiator.receive(responder.transfer())[2]


def test_data_may_arrive_in_single_bytes() -> None:
    initiator, responder = ends()
    answer = b"".join(responder.receive(bytes([byte]))[1] for byte in initiator.hello())
    for byte in answer:
        assert initiator.receive(bytes([byte]))[2]
    assert initiator.established


def test_a_caller_with_another_key_is_disconnected() -> None:
    _, responder = ends(key=b"another")
    initiator, _ = ends()
    assert responder.receive(initiator.hello()) == ([], b"", False)


def test_an_answer_of_another_agent_is_refused() -> None:
    """The dialled port belongs to another agent of the run meanwhile."""
    initiator, responder = ends(responder="c@1")
    answer = responder.receive(initiator.hello())[1]
    assert answer
    assert not initiator.receive(answer)[2]
    assert not initiator.established


def test_a_replayed_session_is_refused() -> None:
    initiator, _ = handshake()
    recorded = [initiator.hello(), initiator.heartbeat(5)]
    again = Session(KEY, "b@1", nonce(3))
    _, answer, valid = again.receive(recorded[0])
    assert answer and valid, "a hello proves nothing"
    assert not again.receive(recorded[1])[2]
    assert not again.established


def test_a_replayed_answer_is_refused() -> None:
    initiator, responder = ends()
    answer = responder.receive(initiator.hello())[1]
    later = Session(KEY, "a@1", nonce(4), "b@1")
    assert not later.receive(answer)[2]
    assert not later.established


def test_a_reflected_message_is_refused() -> None:
    initiator, _ = handshake()
    assert not initiator.receive(initiator.heartbeat(1))[2]
    mirror = Session(KEY, "a@1", nonce(5))
    assert not mirror.receive(initiator.hello())[2], "our own hello, as if a dial had reached its own socket"


@pytest.mark.parametrize("order", [(0, 0), (1,), (0, 2)], ids=["twice", "the second first", "one left out"])
def test_a_heartbeat_counts_once_and_in_order(order: tuple[int, ...]) -> None:
    initiator, responder = handshake()
    heartbeats = [initiator.heartbeat(version) for version in range(3)]
    assert not responder.receive(b"".join(heartbeats[index] for index in order))[2]


@pytest.mark.parametrize("kind", [Kind.NOTIFICATION, Kind.ANSWER, Kind.HEARTBEAT, Kind.CLOSE, Kind.TRANSFER])
def test_a_call_begins_with_hello(kind: Kind) -> None:
    _, responder = ends()
    assert not responder.receive(encode(KEY, Message(kind, "a@1", 1)))[2]


@pytest.mark.parametrize("kind", [Kind.NOTIFICATION, Kind.HELLO, Kind.HEARTBEAT, Kind.CLOSE, Kind.TRANSFER])
def test_a_hello_is_answered_completely_or_not_at_all(kind: Kind) -> None:
    initiator, _ = ends()
    assert not initiator.receive(encode(KEY, Message(kind, "b@1", 1)))[2]
    assert not initiator.established
