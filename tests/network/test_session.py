import pytest

from hpcelastic.network.messages import Kind, Message, encode
from hpcelastic.network.session import Session

KEY = bytes(range(32))


def nonce(number: int) -> bytes:
    return bytes([number]) * 16


def ends(caller: str = "a@1", called: str = "b@1", wanted: str = "b@1", key: bytes = KEY) -> tuple[Session, Session]:
    return Session(KEY, caller, nonce(1), wanted), Session(key, called, nonce(2))


def shaken_hands() -> tuple[Session, Session]:
    caller, called = ends()
    _, answer, sound = called.take(caller.hello())
    assert sound and answer and not called.established
    assert caller.take(answer) == ([], b"", True)
    return caller, called


def test_both_prove_themselves() -> None:
    caller, called = shaken_hands()
    assert caller.established and not called.established, "the caller has yet to prove that it knows our nonce"
    said, reply, sound = called.take(caller.pulse(5))
    assert [message.version for message in said] == [5] and not reply and sound
    assert called.established and called.peer == "a@1"
    assert caller.dialler == called.dialler == "a@1"


def test_pulses_go_both_ways_and_carry_versions() -> None:
    caller, called = shaken_hands()
    called.take(caller.pulse(0))
    for version in (3, 3, 9):
        assert [it.version for it in caller.take(called.pulse(version))[0]] == [version]
        assert [it.version for it in called.take(caller.pulse(version))[0]] == [version]


def test_goodbye_is_told() -> None:
    caller, called = shaken_hands()
    said, _, sound = called.take(caller.pulse(0) + caller.bye())
    assert [it.kind for it in said] == [Kind.PULSE, Kind.BYE] and sound


def test_all_may_come_in_crumbs() -> None:
    caller, called = ends()
    answer = b"".join(called.take(bytes([byte]))[1] for byte in caller.hello())
    for byte in answer:
        assert caller.take(bytes([byte]))[2]
    assert caller.established


def test_a_caller_with_another_key_is_cut_off() -> None:
    _, called = ends(key=b"another")
    caller, _ = ends()
    assert called.take(caller.hello()) == ([], b"", False)


def test_an_answer_of_somebody_else_is_not_taken() -> None:
    """The port that was called belongs to another agent of the run by now."""
    caller, called = ends(called="c@1")
    answer = called.take(caller.hello())[1]
    assert answer
    assert not caller.take(answer)[2]
    assert not caller.established


def test_a_recorded_session_is_worth_nothing() -> None:
    caller, _ = shaken_hands()
    recorded = [caller.hello(), caller.pulse(5)]
    again = Session(KEY, "b@1", nonce(3))
    _, answer, sound = again.take(recorded[0])
    assert answer and sound, "a hello proves nothing"
    assert not again.take(recorded[1])[2]
    assert not again.established


def test_a_recorded_answer_is_worth_nothing() -> None:
    caller, called = ends()
    answer = called.take(caller.hello())[1]
    later = Session(KEY, "a@1", nonce(4), "b@1")
    assert not later.take(answer)[2]
    assert not later.established


def test_what_is_sent_back_to_its_sender_is_not_taken() -> None:
    caller, _ = shaken_hands()
    assert not caller.take(caller.pulse(1))[2]
    mirror = Session(KEY, "a@1", nonce(5))
    assert not mirror.take(caller.hello())[2], "our own hello, as when a call ends at its own socket"


@pytest.mark.parametrize("order", [(0, 0), (1,), (0, 2)], ids=["twice", "the second first", "one left out"])
def test_a_pulse_counts_once_and_in_order(order: tuple[int, ...]) -> None:
    caller, called = shaken_hands()
    pulses = [caller.pulse(version) for version in range(3)]
    assert not called.take(b"".join(pulses[index] for index in order))[2]


@pytest.mark.parametrize("kind", [Kind.BELL, Kind.ANSWER, Kind.PULSE, Kind.BYE])
def test_a_call_begins_with_hello(kind: Kind) -> None:
    _, called = ends()
    assert not called.take(encode(KEY, Message(kind, "a@1", 1)))[2]


@pytest.mark.parametrize("kind", [Kind.BELL, Kind.HELLO, Kind.PULSE, Kind.BYE])
def test_a_hello_is_answered_or_not_at_all(kind: Kind) -> None:
    caller, _ = ends()
    assert not caller.take(encode(KEY, Message(kind, "b@1", 1)))[2]
    assert not caller.established
