import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcelastic.network.messages import (
    LONGEST,
    NONCE,
    Kind,
    Message,
    Stream,
    derive,
    encode,
    encode_change,
    length,
    parse,
    parse_datagram,
)

KEY = bytes(range(32))
NOTIFICATION = Message(Kind.NOTIFICATION, "node-1@abc", sequence=7, version=12)
U64 = st.integers(0, 2**64 - 1)

messages = st.builds(
    Message,
    st.sampled_from(Kind),
    st.text(max_size=60),
    U64,
    U64,
    st.binary(min_size=NONCE, max_size=NONCE),
)


@given(messages, st.binary(max_size=40))
def test_a_message_is_decoded(message: Message, key: bytes) -> None:
    assert parse(key, encode(key, message)) == message


@given(messages)
def test_no_message_exceeds_the_maximum_length(message: Message) -> None:
    assert len(encode(KEY, message)) <= LONGEST


@given(st.binary(max_size=400))
def test_random_bytes_are_no_message(data: bytes) -> None:
    assert parse(KEY, data) is None


@given(messages, st.data())
def test_a_changed_bit_invalidates_a_message(message: Message, data: st.DataObject) -> None:
    sound = bytearray(encode(KEY, message))
    bit = data.draw(st.integers(0, len(sound) * 8 - 1))
    sound[bit // 8] ^= 1 << bit % 8
    assert parse(KEY, bytes(sound)) is None


@given(messages, st.data())
def test_a_part_of_a_message_is_invalid(message: Message, data: st.DataObject) -> None:
    sound = encode(KEY, message)
    assert parse(KEY, sound[: data.draw(st.integers(0, len(sound) - 1))]) is None


@given(messages, st.binary(min_size=1, max_size=40))
def test_a_longer_message_is_invalid(message: Message, more: bytes) -> None:
    assert parse(KEY, encode(KEY, message) + more) is None


@given(st.binary(min_size=1, max_size=400))
def test_a_change_is_in_the_datagram_of_its_message(change: bytes) -> None:
    parsed = parse_datagram(KEY, encode_change(KEY, NOTIFICATION, change))
    assert parsed is not None and parsed[1] == change
    assert (parsed[0].kind, parsed[0].version) == (Kind.CHANGE, NOTIFICATION.version)
    assert parse_datagram(KEY, encode(KEY, NOTIFICATION)) == (NOTIFICATION, b"")


@given(st.binary(min_size=1, max_size=400), st.data())
def test_a_changed_bit_invalidates_a_datagram(change: bytes, data: st.DataObject) -> None:
    datagram = bytearray(encode_change(KEY, NOTIFICATION, change))
    bit = data.draw(st.integers(0, len(datagram) * 8 - 1))
    datagram[bit // 8] ^= 1 << bit % 8
    assert parse_datagram(KEY, bytes(datagram)) is None


@pytest.mark.parametrize(
    "datagram",
    [
        pytest.param(encode_change(KEY, NOTIFICATION, b"change")[:-1], id="cut off"),
        pytest.param(encode_change(KEY, NOTIFICATION, b"change") + b"more", id="longer"),
        pytest.param(encode(KEY, NOTIFICATION) + b"change", id="a notification with a change"),
        pytest.param(encode_change(b"another", NOTIFICATION, b"change"), id="another key"),
        pytest.param(encode(KEY, Message(Kind.HEARTBEAT, "a@1")), id="a message of a link"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_another_datagram_is_dropped(datagram: bytes) -> None:
    assert parse_datagram(KEY, datagram) is None


def test_a_message_with_another_key_is_invalid() -> None:
    assert parse(KEY, encode(b"another", NOTIFICATION)) is None


def test_a_newer_format_is_dropped() -> None:
    data = bytearray(encode(KEY, NOTIFICATION))
    data[2] += 1
    assert length(bytes(data)) is None
    assert parse(KEY, bytes(data)) is None


def test_an_authentic_message_of_an_unknown_kind_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = encode(KEY, Message(99, NOTIFICATION.sender))  # type: ignore[arg-type]  # what a newer release might send
    assert parse(KEY, unknown) is None


def test_an_id_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="255 bytes"):
        encode(KEY, Message(Kind.NOTIFICATION, "x" * 256))
    with pytest.raises(struct.error):
        encode(KEY, Message(Kind.NOTIFICATION, "x", version=-1))


@given(st.lists(messages, max_size=6), st.data())
def test_a_stream_is_split_into_messages(encoded: list[Message], data: st.DataObject) -> None:
    rest = b"".join(encode(KEY, message) for message in encoded)
    stream, found = Stream(), []
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        found += [parse(KEY, whole or b"") for whole in stream.feed(rest[:size])]
        rest = rest[size:]
    assert found == encoded


@given(st.binary(min_size=1, max_size=200))
def test_noise_ends_a_stream_or_waits(noise: bytes) -> None:
    found = list(Stream().feed(noise))
    assert all(whole is None or parse(KEY, whole) is None for whole in found)
    assert found.count(None) <= 1


def test_noise_after_a_message_is_reported() -> None:
    sound = encode(KEY, NOTIFICATION)
    assert list(Stream().feed(sound + b"GET / HTTP/1.1")) == [sound, None]


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_derived_keys_differ_with_their_parts(one: list[bytes], other: list[bytes]) -> None:
    assert (derive(KEY, "x", *one) == derive(KEY, "x", *other)) == (one == other)
