"""The difference between two states, and what a node makes of it."""

import zlib
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcelastic.protocol.changes import MAX_LENGTH, changed, difference, pack, unpack
from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.protocol.rows import Rows
from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import Cause, Failure, Participant, Phase, State

LARGE = Settings(NodeRange(1, 10_000))


def member(number: int, port: int = 0) -> Participant:
    return Participant(f"n{number}@0-{number:08x}", 8, f"10.0.{number >> 8}.{number & 255}", port, 20000, "s0.s1")


MEMBERS = tuple(map(member, range(1000)))
RUNNING = State("r", LARGE, Phase.RUNNING, 1, MEMBERS)

numbers = st.lists(st.integers(0, 12), unique=True, max_size=10)
members = st.tuples(numbers, st.integers(0, 2)).map(lambda it: tuple(member(number, it[1]) for number in it[0]))
failures = st.builds(Failure, st.integers(0, 9), st.text(max_size=5), st.just(0), st.just(0), st.just(1), st.text())
states = st.builds(
    State,
    st.just("r"),
    st.builds(Settings),
    st.sampled_from(Phase),
    st.integers(0, 9),
    members,
    st.lists(st.text(max_size=4), max_size=3).map(tuple),
    st.sampled_from([None, *Cause]),
    spent=st.dictionaries(st.sampled_from(["node", "worker"]), st.integers(0, 5)),
    failures=st.lists(failures, max_size=2).map(tuple),
    reason=st.text(max_size=20),
)


@given(states, states)
def test_a_change_leads_from_one_state_to_the_other(before: State, after: State) -> None:
    packed = pack(difference(before, after))
    assert not packed or changed(before, unpack(packed)) == after
    assert changed(before, difference(before, after)) == after


@given(states, states)
def test_a_change_of_a_state_that_was_read_decodes_no_member_that_stays(before: State, after: State) -> None:
    read = decode(State, encode(before))
    next_state = changed(read, difference(before, after))
    assert isinstance(next_state.participants, Rows) and not next_state.participants._values
    assert next_state == after and encode(next_state) == encode(after)
    assert changed(read, difference(read, decode(State, encode(after)))) == after


def with_members(*members: Participant) -> State:
    return replace(RUNNING, round=2, participants=members)


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(replace(RUNNING, phase=Phase.JOINING, cause=Cause.NODE, lost="n7@0"), id="a loss"),
        pytest.param(with_members(*MEMBERS[:500], *MEMBERS[501:]), id="one node less"),
        pytest.param(with_members(*MEMBERS[:7], member(5000), *MEMBERS[8:]), id="a spare"),
        pytest.param(with_members(*(m for i, m in enumerate(MEMBERS) if i % 100)), id="1 % less"),
    ],
)
def test_the_change_of_a_fault_is_sent(after: State) -> None:
    packed = pack(difference(RUNNING, after))
    assert 0 < len(packed) <= MAX_LENGTH
    assert changed(RUNNING, unpack(packed)) == after


def test_the_loss_of_one_percent_of_a_large_run_is_sent() -> None:
    before = replace(RUNNING, participants=tuple(map(member, range(10_000))))
    lost = {*Random(0).sample(range(10_000), 100)}
    after = replace(before, round=2, participants=tuple(m for i, m in enumerate(before.participants) if i not in lost))
    packed = pack(difference(before, after))
    assert 0 < len(packed) <= MAX_LENGTH
    assert changed(before, unpack(packed)) == after


def test_a_change_that_is_too_long_is_not_sent() -> None:
    before = replace(RUNNING, phase=Phase.JOINING, round=0, participants=())
    assert pack(difference(before, RUNNING)) == b""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param([], "not an object", id="a list"),
        pytest.param({"phase": "paused"}, "phase is 'paused'", id="an unknown phase"),
        pytest.param({"failures": [{"round": 1}]}, r"failures\[0\]\.node is missing", id="a nested field"),
        pytest.param({"participants": {}}, "not an object", id="no list of members"),
        pytest.param({"participants": [[0, 1001]]}, "the members 0 to 1001 of 1000", id="members that are not there"),
        pytest.param({"participants": [[-1, 3]]}, "the members -1 to 2", id="a negative rank"),
        pytest.param({"participants": [[5, 0]]}, "the members 5 to 5", id="no members"),
        pytest.param({"participants": [["a@0", 1]]}, "has 2 values", id="a short row"),
    ],
)
def test_a_wrong_change_is_refused(change: Any, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        changed(RUNNING, change)


def test_a_field_of_a_later_version_is_ignored() -> None:
    assert changed(RUNNING, {"weather": "fine", "round": 2}) == replace(RUNNING, round=2)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_change_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        changed(RUNNING, unpack(data))


def test_a_change_that_unpacks_to_very_much_is_refused() -> None:
    with pytest.raises(DecodeError):
        unpack(zlib.compress(b'"' + b"x" * 10_000_000 + b'"'))
