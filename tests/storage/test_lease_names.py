from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hpcelastic.protocol.leaders import leaders
from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import Failure, Member, NodeState, Seen, State, View
from hpcelastic.storage.lease_names import (
    MAX_NAME_LENGTH,
    LeaseName,
    first_ready_members,
    lease_name,
    member_of,
    newest,
    parse,
    same_but_state,
    summary,
)

MEMBER = Member("n1@0-ab", NodeState.RUNNING, 3, 8, "10.0.0.1", 4000, order=3, job="7.0", job_nodes=4, fenced=2)
FAILURE = Failure(3, "n1@0-ab", 3, 1, -9, "killed by SIGKILL")

SAFE = "abcdefghijklmnopqrstuvwxyzABCXYZ0123456789._-"
NODES = some.builds("{}@{}-{}".format, some.text(SAFE, min_size=1, max_size=40), some.integers(0, 99), some.text("abc"))
NUMBERS = some.integers(-(10**6), 10**6)
TEXTS = some.text(max_size=30)


@some.composite
def members(draw: some.DrawFn) -> Member:
    node = draw(NODES)
    name = node.rpartition("@")[0]
    own = some.builds(f"{name}@{{}}".format, some.text(SAFE + "~+,%@é", max_size=12))
    numbers = ("round", "local_world_size", "port", "order", "job_nodes", "fenced", "starting")
    known: dict[str, Any] = {
        **dict.fromkeys(numbers, NUMBERS),
        "final": some.booleans(),
        "early_start": some.booleans(),
    }
    return draw(
        some.builds(
            Member,
            node=some.just(node),
            node_state=some.sampled_from(NodeState),
            address=TEXTS,
            job=TEXTS,
            host=TEXTS,
            topology=TEXTS,
            process=some.sampled_from(["", "b:1:2:3"]),
            dead=some.lists(own | NODES, max_size=8).map(tuple),
            failure=some.sampled_from([None, FAILURE]),
            **known,
        )
    )


def name_of_lease(member: Member, revision: int = 1, heartbeat: int = 1) -> LeaseName:
    name = parse(lease_name(member.node, revision, heartbeat, summary(member)))
    assert name is not None
    return name


@given(members(), some.none() | some.floats(0.0, 9999.0))
def test_a_name_tells_the_duration_in_milliseconds_rounded_up(member: Member, duration: float | None) -> None:
    name = parse(lease_name(member.node, 1, 2, summary(member), duration))
    assert name is not None and (name.revision, name.heartbeat) == (1, 2)
    assert len(name.text.encode()) <= MAX_NAME_LENGTH
    if duration is None:
        assert name.duration is None
    else:
        assert name.duration is not None and duration <= name.duration <= duration + 0.001


@given(members(), some.integers(0, 10**9), some.integers(0, 10**9))
def test_a_name_has_the_whole_member_or_a_mark_that_it_has_not(member: Member, revision: int, heartbeat: int) -> None:
    name = name_of_lease(member, revision, heartbeat)
    assert (name.node, name.revision, name.heartbeat) == (member.node, revision, heartbeat)
    assert len(name.text.encode()) <= MAX_NAME_LENGTH
    assert not set("/\0\n ") & set(name.text)
    found, whole = member_of(name)
    wanted = replace(member, process="")
    if whole:
        assert found == wanted
    elif found is not None:
        assert replace(wanted, dead=(), failure=None) == replace(found, dead=())
        assert set(found.dead) <= set(wanted.dead)
        assert found != wanted


@given(members(), some.sampled_from(NodeState), NUMBERS, some.booleans())
def test_a_name_with_another_state_tells_the_same_quickly(
    member: Member, node_state: NodeState, round: int, final: bool
) -> None:
    later = replace(member, node_state=node_state, round=round, final=final)
    before, name = name_of_lease(member), name_of_lease(later, 2, 2)
    (known, known_complete), (whole, complete) = member_of(before), member_of(name)
    if known is None:  # its summary does not fit
        return
    found = same_but_state(name, before, known)
    if known_complete and complete and final == member.final:
        assert found == whole and hash(found) == hash(whole)
    else:
        assert found is None


@pytest.mark.parametrize("text", ["new,2", "ready,x", "ready", ""])
def test_a_name_with_an_unknown_state_tells_nothing_quickly(text: str) -> None:
    before = name_of_lease(MEMBER)
    rest = before.text.split(",", 2)[2]
    name = parse(f"n1@0-ab~2~2~{text},{rest}")
    assert name is not None and same_but_state(name, before, MEMBER) is None


@given(some.text())
def test_any_text_is_a_name_or_none(text: str) -> None:
    name = parse(text)
    if name is not None:
        assert name.text == text
        member_of(name)


def test_a_name_is_readable_for_people() -> None:
    member = replace(MEMBER, dead=("n1@0-01", "n1@0-02"), job="7~1.0", host="n1", topology="top.s1")
    assert name_of_lease(member, 4, 17).text.startswith("n1@0-ab~4~17~running,3,8,10.0.0.1,4000,")
    assert name_of_lease(member).text.endswith(",3,7%7E1.0,4,n1,top.s1,,2,-1+0-01+0-02.json")
    assert member_of(name_of_lease(member)) == (member, True)


MORE = {
    "a failure": {"failure": FAILURE},
    "an odd incarnation": {"dead": ("n1@",)},
    "many deaths": {"dead": tuple(f"n1@{i}-{i:08x}" for i in range(40))},
}


@pytest.mark.parametrize("more", MORE.values(), ids=MORE.keys())
def test_members_that_do_not_fit_are_marked(more: dict[str, object]) -> None:
    found, whole = member_of(name_of_lease(replace(MEMBER, **more)))  # type: ignore[arg-type]  # fields of Member
    assert not whole
    assert found is not None and replace(found, dead=()) == MEMBER


@pytest.mark.parametrize(
    ("dead", "ends"),
    [
        pytest.param(("n2@0-ab",), "+n2%400-ab", id="another node"),
        pytest.param(("n1@x@0-ab",), "+n1%40x%400-ab", id="a name that begins like ours"),
        pytest.param(("n2@0-ab", "n1@0-01"), "+n2%400-ab+0-01", id="another node and a predecessor"),
    ],
)
def test_a_name_has_the_other_nodes_that_are_dead(dead: tuple[str, ...], ends: str) -> None:
    member = replace(MEMBER, dead=dead)
    assert name_of_lease(member).text.endswith(f"{ends}.json")
    assert member_of(name_of_lease(member)) == (member, True)


def test_as_many_dead_nodes_as_fit_are_in_the_name() -> None:
    found, _ = member_of(name_of_lease(replace(MEMBER, dead=MORE["many deaths"]["dead"])))  # type: ignore[arg-type]  # a tuple
    assert found is not None and 5 < len(found.dead) < 40


@pytest.mark.parametrize("field", ["address", "topology"])
def test_a_summary_that_does_not_fit_is_omitted(field: str) -> None:
    member = replace(MEMBER, **{field: "a" * 300})
    assert summary(member) == "+"
    assert member_of(name_of_lease(member)) == (None, False)


@pytest.mark.parametrize("text", ["n@0~1~1~a,b.json", "n@0~1~1~.json", "n@0~x.json", "n@0~x~1~.json", "n@0~1~2.json"])
def test_an_unknown_summary_counts_as_incomplete(text: str) -> None:
    name = parse(text)
    assert name is not None
    assert member_of(name) == (None, False)


def test_an_unknown_node_state_counts_as_incomplete() -> None:
    name = parse(name_of_lease(MEMBER).text.replace("running", "dancing"))
    assert name is not None
    assert member_of(name) == (None, False)


def test_the_first_nodes_follow_from_the_names() -> None:
    members = [Member(f"n{i}@0-ab", NodeState.READY, 0, 1, f"10.0.0.{i}", 4000, order=i) for i in (11, 2, 7, 3, 1)]
    left = replace(members[-1], node="n0@0-ab", node_state=NodeState.LEFT, order=0)
    texts = [lease_name(m.node, 1, 1, summary(m)) for m in (*members, left)]
    others = ["x", "n5@0-ab~1~1~+.json", "n5@0-ab~1~1~ready,0,1,a,1,1,one,j,0,-1.json", f"{texts[0]}.draft"]
    found = first_ready_members([*texts, *others], 3)
    assert [m.order for m in found] == [1, 2, 3]
    assert found[1] == members[1]
    assert first_ready_members(others, 3) == []


def test_of_many_nodes_of_small_jobs_the_first_ones_are_those_that_look_first() -> None:
    members = [
        Member(f"n{i}@0-ab", NodeState.READY, 0, 1, f"10.0.0.{i}", 4000, job=f"{i}.0", job_nodes=1) for i in range(200)
    ]
    found = first_ready_members([lease_name(m.node, 1, 1, summary(m)) for m in members], 3)
    state = State("run", Settings(NodeRange(1, 200)))
    assert found == leaders(state, View({m.node: Seen(m, alive=True) for m in members}), 200)


def test_counters_are_compared_as_numbers() -> None:
    texts = [
        lease_name("n@0", revision, heartbeat, "+") for revision, heartbeat in ((9, 99), (10, 9), (10, 100), (10, 99))
    ]
    assert newest(texts)["n@0"].text == texts[2]
    assert newest(texts[::-1])["n@0"].text == texts[2]


def test_a_name_of_an_unknown_format_comes_before_any_other() -> None:
    texts = ["n@0~zzz.json", lease_name("n@0", 0, 1, "+")]
    assert newest(texts)["n@0"].text == newest(texts[::-1])["n@0"].text == texts[1]


def test_the_last_fields_are_left_out_if_they_have_their_defaults() -> None:
    short, long = summary(MEMBER), summary(replace(MEMBER, early_start=True, starting=2))
    assert long == f"{short},0,1,2"
    for member in (MEMBER, replace(MEMBER, early_start=True), replace(MEMBER, early_start=True, starting=2)):
        assert member_of(name_of_lease(member)) == (member, True)
