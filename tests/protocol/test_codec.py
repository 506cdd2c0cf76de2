"""JSON of the protocol's values: complete, tolerant of newer fields, strict about types and enumerations."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcelastic.doctor.verdict import FilesystemReport
from hpcelastic.protocol.codec import DecodeError, decode, encode, renamed
from hpcelastic.protocol.events import Leaving
from hpcelastic.protocol.rows import Rows, column, positions
from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.protocol.state import Cause, Failure, Member, NodeState, Notice, Participant, Phase, State
from tests.protocol.builders import failure, member, running

text = st.text(max_size=12)
whole = st.integers()
number = st.floats(allow_nan=False)
seconds = st.floats(1e-3, 1e6)

failures = st.builds(Failure, whole, text, whole, whole, whole, text, text, text, number)
members = st.builds(
    Member,
    node=text,
    node_state=st.sampled_from(NodeState),
    round=whole,
    local_world_size=whole,
    address=text,
    port=whole,
    order=whole,
    job=text,
    job_nodes=whole,
    host=text,
    topology=text,
    process=text,
    dead=st.lists(text, max_size=3).map(tuple),
    failure=st.none() | failures,
    fenced=whole,
)
settings = st.builds(
    Settings,
    nodes=st.tuples(st.integers(1, 99), st.integers(0, 99)).map(lambda pair: NodeRange(pair[0], sum(pair))),
    rendezvous=st.builds(
        lambda lease, margin, last_call: RendezvousSettings(
            margin, last_call, lease=lease, margin=margin, poll=lease / 4
        ),
        seconds,
        seconds,
        st.floats(0, 1e6),
    ),
    restarts=st.builds(RestartSettings, st.integers(0, 10**20)),
)
states = st.builds(
    State,
    run_id=text,
    settings=settings,
    phase=st.sampled_from(Phase),
    round=whole,
    participants=st.lists(st.builds(Participant, text, whole, text, whole, whole, text), max_size=3).map(tuple),
    standbys=st.lists(text, max_size=3).map(tuple),
    cause=st.none() | st.sampled_from(Cause),
    spent=st.dictionaries(st.sampled_from([cause.value for cause in Cause]), whole),
    failures=st.lists(failures, max_size=2).map(tuple),
    reason=text,
)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(encode(value)))


@given(st.one_of(members, states, settings, failures))
def test_decode_inverts_encode_through_json(value: Any) -> None:
    again = decode(type(value), through_json(value))
    assert again == value
    assert repr(again) == repr(value)  # also the types: 1 is not 1.0, and a tuple is not a list


def with_strangers(data: Any) -> Any:
    """Return the JSON with an unknown field in every object that is a value, as a newer writer would extend it."""
    if isinstance(data, list):
        return [with_strangers(item) for item in data]
    if isinstance(data, dict):
        return {"newer": {"than": ["this"]}, **{k: v if k == "spent" else with_strangers(v) for k, v in data.items()}}
    return data


@given(st.one_of(members, states))
def test_unknown_fields_are_accepted(value: Any) -> None:
    assert decode(type(value), with_strangers(through_json(value))) == value


ROW = Participant("n1@0-ab", 8, "10.0.0.1", 29500, topology="s0.s1")


def test_a_row_has_the_fields_in_their_order_without_the_last_defaults() -> None:
    assert encode(ROW) == ["n1@0-ab", 8, "10.0.0.1", 29500, 0, "s0.s1"]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(encode(ROW), id="row"),
        pytest.param([*encode(ROW), ""], id="with a default"),
        pytest.param([*encode(ROW), "", {"later": True}], id="of a later version"),
        pytest.param(vars(ROW), id="object of an older version"),
    ],
)
def test_rows_of_all_versions_are_read(data: Any) -> None:
    assert decode(Participant, data) == ROW


def test_absent_fields_take_their_defaults() -> None:
    data = {"node": "a@0", "node_state": "ready", "round": 1, "local_world_size": 2, "address": "h", "port": 3}
    assert decode(Member, data) == Member("a@0", NodeState.READY, 1, 2, "h", 3)
    assert decode(State, {"run_id": "r", "settings": {}}) == State("r", Settings())


@dataclass(frozen=True)
class Renamed:
    """A dataclass with a renamed field."""

    new: int = field(default=0, metadata=renamed("old"))


def test_a_renamed_field_is_read_from_its_old_name_too() -> None:
    assert (
        decode(Renamed, {"old": 1})
        == decode(Renamed, {"new": 1})
        == decode(Renamed, {"old": 2, "new": 1})
        == Renamed(1)
    )
    assert encode(Renamed(1)) == {"new": 1}
    with pytest.raises(DecodeError, match=r"^old is 'x', not int$"):
        decode(Renamed, {"old": "x"})


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (Notice("preempted", 1.0, requeue="limit"), {"reason": "preempted", "seconds": 1.0, "again": "limit"}),
        (Leaving(reason="drain", seconds=1.0, requeue="never"), {"reason": "drain", "seconds": 1.0, "again": "never"}),
        (FilesystemReport(True, poll_duration=0.5), {"safe": True, "look": 0.5}),
    ],
    ids=["a notice in a lease", "an event", "a filesystem report"],
)
def test_files_of_older_versions_are_read(value: Any, data: dict[str, Any]) -> None:
    assert decode(type(value), data) == value


STATE = through_json(running("ab", failures=(failure("a", 1),), spent={"node": 1}, cause=Cause.JOIN))
MEMBER = through_json(member("a", NodeState.FAILED, 1, failure=failure("a", 1), dead=("a@9",)))


LEASE = ["settings", "rendezvous", "lease"]


def changed(data: Any, place: list[Any], value: Any) -> Any:
    """Return a copy of JSON ``data`` with ``value`` at ``place``."""
    if not place:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[place[0]] = changed(copy[place[0]], place[1:], value)
    return copy


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        pytest.param([], None, "State is not an object", id="null"),
        pytest.param([], [], "State is not an object", id="a list"),
        pytest.param(["run_id"], 7, "run_id is 7, not str", id="number for text"),
        pytest.param(["run_id"], None, "run_id is None, not str", id="null for text"),
        pytest.param(["phase"], "paused", r"phase is 'paused', not one of \['joining'", id="unknown phase"),
        pytest.param(["phase"], "JOINING", "phase is 'JOINING'", id="the name of a phase instead of its value"),
        pytest.param(["phase"], None, "phase is None", id="null for a phase"),
        pytest.param(["phase"], ["joining"], "phase is", id="list for a phase"),
        pytest.param(["cause"], "weather", "cause is 'weather'", id="unknown cause"),
        pytest.param(["round"], True, "round is True, not int", id="bool for int"),
        pytest.param(["round"], 1.0, r"round is 1\.0, not int", id="float for int"),
        pytest.param(["round"], "1", "round is '1', not int", id="text for int"),
        pytest.param(["round"], None, "round is None, not int", id="null for int"),
        pytest.param(["settings"], None, "settings is not an object", id="null for an object"),
        pytest.param(["settings", "nodes"], 3, r"settings\.nodes is not an object", id="number for an object"),
        pytest.param(["settings", "nodes", "min"], False, r"settings\.nodes\.min is False", id="a nested field"),
        pytest.param(
            ["settings", "rendezvous", "lease"], True, r"settings\.rendezvous\.lease is True", id="bool for float"
        ),
        pytest.param(
            ["settings", "rendezvous", "lease"], "10", r"settings\.rendezvous\.lease is '10'", id="text for float"
        ),
        pytest.param(["participants"], {}, r"participants is \{\}, not list", id="object for a list"),
        pytest.param(["participants"], "ab", "participants is 'ab', not list", id="text for a list"),
        pytest.param(["participants", 1], None, r"participants\[1\] is not an object", id="in a list"),
        pytest.param(["participants", 1], {}, r"participants\[1\]\.node is missing", id="missing in a list"),
        pytest.param(["participants", 0, 3], 1.5, r"participants\[0\]\.port is 1\.5", id="a field of a row"),
        pytest.param(
            ["participants", 0], ["a@0", 1], r"participants\[0\] has 2 values, not at least 4", id="short row"
        ),
        pytest.param(["standbys"], ["a@0", 1], r"standbys\[1\] is 1, not str", id="in a list of text"),
        pytest.param(["spent"], [], r"spent is \[\], not dict", id="list for a mapping"),
        pytest.param(["spent"], {"node": True}, r"spent\.node is True, not int", id="in a mapping"),
        pytest.param(["failures", 0, "rank"], None, r"failures\[0\]\.rank is None", id="in a failure"),
    ],
)
def test_an_invalid_value_is_refused_with_its_place(place: list[str | int], value: Any, message: str) -> None:
    with pytest.raises(DecodeError, match=f"^{message}"):
        decode(State, changed(STATE, place, value))


@pytest.mark.parametrize("name", ["node", "node_state", "round", "local_world_size", "address", "port"])
def test_the_error_names_a_missing_field(name: str) -> None:
    data = {key: value for key, value in MEMBER.items() if key != name}
    with pytest.raises(DecodeError, match=f"^{name} is missing$"):
        decode(Member, data)


def test_the_place_may_have_a_prefix() -> None:
    with pytest.raises(DecodeError, match=r"^v7\.round is None"):
        decode(State, changed(STATE, ["round"], None), "v7")


@pytest.mark.parametrize("value", [1, "x", [], {}, {"round": 1}], ids=str)
def test_an_optional_value_must_be_valid(value: Any) -> None:
    with pytest.raises(DecodeError, match=r"^failure\b"):
        decode(Member, changed(MEMBER, ["failure"], value))


@given(whole)
def test_a_whole_number_of_seconds_is_a_float(lease: int) -> None:
    data = changed(MEMBER, ["failure", "timestamp"], lease % 10**15)
    decoded = decode(Member, data).failure
    assert decoded is not None
    assert isinstance(decoded.timestamp, float)


def test_a_number_larger_than_any_float_is_refused() -> None:
    with pytest.raises(DecodeError, match="timestamp"):
        decode(Failure, changed(through_json(failure("a", 1)), ["timestamp"], 10**400))


def test_the_error_names_a_wrong_field_of_an_optional_value() -> None:
    with pytest.raises(DecodeError, match=r"^failure\.rank is None"):
        decode(Member, changed(MEMBER, ["failure", "rank"], None))


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"nodes\.min is 9"):
        decode(State, changed(STATE, ["settings", "nodes", "min"], 9))


@dataclass(frozen=True)
class Anything:
    """Hints that the values of the protocol do not use."""

    choice: Literal["none", "out"] = "none"
    either: int | str | None = None
    flag: bool = False
    table: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@given(
    st.builds(
        Anything,
        choice=st.sampled_from(["none", "out"]),
        either=st.none() | whole | text,
        flag=st.booleans(),
        table=st.dictionaries(text, st.lists(whole, max_size=3).map(tuple), max_size=3),
    )
)
def test_other_hints_too(value: Anything) -> None:
    assert repr(decode(Anything, through_json(value))) == repr(value)


@pytest.mark.parametrize(
    "data",
    [
        {"choice": "err"},
        {"choice": None},
        {"either": True},
        {"either": 1.5},
        {"either": []},
        {"flag": 1},
        {"flag": None},
        {"table": {"a": [True]}},
        {"table": {"a": 1}},
    ],
    ids=str,
)
def test_other_hints_refuse_wrong_values(data: Any) -> None:
    with pytest.raises(DecodeError, match=f"^{next(iter(data))}"):
        decode(Anything, data)


# Rows that are decoded when they are used


@dataclass(frozen=True)
class Group:
    members: Sequence[Participant] = ()


PARTICIPANTS = tuple(Participant(f"n{index}@0", index, "::1", 1, topology="s" * (index % 2)) for index in range(5))


def test_rows_equal_the_tuple_of_their_values() -> None:
    rows, values = decode(Group, encode(Group(PARTICIPANTS))).members, PARTICIPANTS
    assert isinstance(rows, Rows) and not rows._values
    assert rows == values and values == rows and hash(rows) == hash(PARTICIPANTS)
    assert rows == decode(Group, encode(Group(PARTICIPANTS))).members
    assert repr(rows) == repr(PARTICIPANTS) and len(rows) == 5 and [*rows] == [*PARTICIPANTS]
    assert rows[0] is rows[-5] and rows[-1] == PARTICIPANTS[-1] and rows[1:3] == PARTICIPANTS[1:3]
    assert rows not in ((), PARTICIPANTS[:4], [*PARTICIPANTS]) and rows != (*PARTICIPANTS[:4], PARTICIPANTS[0])
    with pytest.raises(IndexError):
        rows[5]


@pytest.mark.parametrize("members", [(), PARTICIPANTS, PARTICIPANTS[:1]], ids=["none", "five", "one"])
def test_a_column_of_rows_is_that_of_their_values(members: tuple[Participant, ...]) -> None:
    rows = decode(Group, encode(Group(members))).members
    for name in ("node", "local_world_size", "topology", "role"):
        assert column(rows, name) == column(members, name) == [getattr(member, name) for member in members]
    assert positions(rows, "node") == positions(members, "node") == {m.node: i for i, m in enumerate(members)}
    assert not members or not (isinstance(rows, Rows) and rows._values), "no value is decoded for that"
    assert encode(Group(rows)) == encode(Group(members))


def test_objects_of_an_older_version_are_decoded_at_once() -> None:
    document = {"members": [{"node": "a@0", "local_world_size": 1, "address": "::1", "port": 1}]}
    assert decode(Group, document).members == (Participant("a@0", 1, "::1", 1),)
    assert not isinstance(decode(Group, document).members, Rows)
