"""The members of a round and their ranks. A node is written ``NAME/SWITCH``, or ``NAME/TOP.LEAF``."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hpcelastic.protocol.ranking import ranked
from hpcelastic.protocol.state import Member, NodeState, Participant, participants_of

JOB = "7.0"


def nodes(text: str, **changes: object) -> list[Member]:
    return [node(word, order=order, **changes) for order, word in enumerate(text.split())]


def node(word: str, **changes: object) -> Member:
    """Parse ``NAME/SWITCH:SIZE``. Only the name is required."""
    word, _, size = word.partition(":")
    name, _, topology = word.partition("/")
    made = Member(f"{name}@0", NodeState.READY, 1, int(size or 2), "10.0.0.1", 4000, topology=topology, job=JOB)
    return replace(made, **changes)  # type: ignore[arg-type]  # its fields


def round_of(text: str) -> Sequence[Participant]:
    return participants_of(nodes(text))


def shown(before: Sequence[Participant], ready: list[Member], max_nodes: int = 9) -> str:
    """Return the names by rank, and after ``+`` the standbys."""
    inside, others = ranked(before, ready, max_nodes)
    return " ".join([*(m.name for m in inside), *(f"+{m.name}" for m in others)])


@pytest.mark.parametrize(
    ("ready", "max_nodes", "ranks"),
    [
        pytest.param("n1 n2 n3", 9, "n1 n2 n3", id="SLURM's order without known switches"),
        pytest.param("n3 n1 n2", 9, "n3 n1 n2", id="SLURM's order before names"),
        pytest.param("n1/s1 n2/s2 n3/s1 n4/s2", 9, "n1 n3 n2 n4", id="switch by switch"),
        pytest.param("n1/s10 n2/s2 n3/s10", 9, "n2 n1 n3", id="switch 2 before switch 10"),
        pytest.param("a/t1.s b/t2.s c/t1.s", 9, "a c b", id="switches with equal names below different ones"),
        pytest.param("a/t.s1 b/u.s1 c/t.s2 d/u.s1", 9, "a c b d", id="nodes below one switch are consecutive"),
        pytest.param("a/s01 b/s1 c/s01 d/s1", 9, "a c b d", id="switches with equal numbers and different names"),
        pytest.param("a b/s1 c d/s1", 9, "a c b d", id="some switches are unknown"),
        pytest.param("a/s1 b/s2 c/s2 d/s2", 3, "b c d +a", id="one switch that holds all"),
        pytest.param("a/s1 b/s1 c/s1 d/s2 e/s2", 2, "d e +a +b +c", id="the smallest switch that holds all"),
        pytest.param("a/s1 b/s2 c/s2 d/s3 e/s3 f/s3", 5, "b c d e f +a", id="as few switches as possible"),
        pytest.param("a/t.s1 b/u.s2 c/u.s3 d/u.s3", 3, "b c d +a", id="under one switch at the top"),
        pytest.param("a b c", 2, "a b +c", id="the first nodes without known switches"),
    ],
)
def test_a_first_round(ready: str, max_nodes: int, ranks: str) -> None:
    assert shown([], nodes(ready), max_nodes) == ranks


def test_without_an_order_names_are_sorted_by_their_numbers() -> None:
    words = ("n10", "n9", "n2_10", "n2_9", "n1")
    assert shown([], [node(word) for word in words]) == "n1 n2_9 n2_10 n9 n10"


def test_nodes_of_different_jobs_are_not_mixed() -> None:
    first, second = nodes("n1 n2 n3"), nodes("n4 n5 n6", job="8.0")
    assert shown([], [*second, *first]) == "n1 n2 n3 n4 n5 n6"


@pytest.mark.parametrize(
    ("before", "ready", "max_nodes", "ranks"),
    [
        pytest.param("c a b", "a b c", 9, "c a b", id="members keep their ranks"),
        pytest.param("a b c", "a c", 9, "a c", id="the ranks of later members decrease"),
        pytest.param("a b c", "a c x", 9, "a x c", id="a newcomer takes the seat of one that was lost"),
        pytest.param("a b c", "x y c", 9, "x y c", id="also the seat of rank 0"),
        pytest.param("a b c", "c x", 9, "x c", id="the first of two seats"),
        pytest.param("a/s1 b/s2 c/s1", "c/s1 x/s2", 9, "x c", id="the nearest of two seats"),
        pytest.param("a/s1 b/s2 c/s3", "c/s3 x/s2 y/s1", 9, "y x c", id="each newcomer gets the nearest seat"),
        pytest.param("a/t.s1 b/u.s2 c/v.s3", "c/v.s3 x/u.s4 y/t.s4", 9, "y x c", id="the nearest level of switches"),
        pytest.param("a:2 b:4 c:2", "c:2 x:2 y:4", 9, "x y c", id="a seat of the same size"),
        pytest.param("a/s1:2 b/s2:4 c:2", "c:2 x/s1:4 y/s2:2", 9, "y x c", id="size before distance"),
        pytest.param("a:2 b:2", "b:2 x:4", 9, "x b", id="a seat of another size if there is no other"),
        pytest.param("a b c", "a c x y", 3, "a x c +y", id="one seat for two newcomers"),
        pytest.param("a/s1 b/s2", "a/s1 x/s1 y/s2", 2, "a y +x", id="the nearest newcomer gets the only seat"),
        pytest.param("a b", "a b x y", 9, "a b x y", id="a round grows at its end"),
        pytest.param("b a", "a b y x", 3, "b a y +x", id="a round grows up to its maximum"),
        pytest.param("a b", "a b x", 2, "a b +x", id="no member is displaced"),
        pytest.param("a b c d", "a b c d x", 2, "a b +c +d +x", id="the run was reopened with a smaller maximum"),
        pytest.param("a b c", "c x", 1, "c +x", id="a free seat, but the maximum is reached"),
        pytest.param("a/s1 b/s2", "a/s1 b/s2 x/s1", 9, "a x b", id="a newcomer follows its switch"),
        pytest.param(
            "a/t.s1 b/u.s2", "a/t.s1 b/u.s2 x/t.s9", 9, "a x b", id="a newcomer follows the next switch above"
        ),
        pytest.param("a/t.s1 b/u.s2", "a/t.s1 b/u.s2 x/t.s0 y/t.s1", 9, "a y x b", id="the nearest newcomer first"),
        pytest.param("a/s1 b/s2", "a/s1 b/s2 x/s3 y z/s3", 9, "a b y x z", id="a new switch is last"),
        pytest.param("a/s1", "a/s1 x/s2 y/s2 z/s1", 3, "a z x +y", id="a known switch is filled first"),
        pytest.param("a/s1 b/s2", "x/s2 y/s1", 9, "y x", id="no member remains"),
        pytest.param("a b", "b@1 a@1", 9, "a@1 b@1", id="a node that returned takes its old seat"),
    ],
)
def test_a_later_round(before: str, ready: str, max_nodes: int, ranks: str) -> None:
    members = [replace(m, node=m.node.removesuffix("@0") if "@1" in m.node else m.node) for m in nodes(ready)]
    assert shown(round_of(before), members, max_nodes) == ranks.replace("@1", "")


# Properties of all rounds

NAMES = [f"n{i}" for i in range(12)]
SWITCHES = some.sampled_from(["", "t.s1", "t.s2", "u.s1", "u.s10", "block3"])


@some.composite
def rooms(draw: some.DrawFn) -> list[Member]:
    """All nodes of a machine room; each is ready."""
    sizes = some.sampled_from(draw(some.sampled_from([[2], [1, 2, 4]])))
    jobs = some.sampled_from(draw(some.sampled_from([["7.0"], ["7.0", "8.0"]])))
    return [
        Member(f"{name}@0", NodeState.READY, 1, draw(sizes), "", 0, order=i, job=draw(jobs), topology=draw(SWITCHES))
        for i, name in enumerate(NAMES)
    ]


@some.composite
def rounds(draw: some.DrawFn) -> tuple[Sequence[Participant], list[Member], int]:
    """A last round, the nodes that are ready after it, and the maximum size of the next one."""
    room = draw(rooms())
    chosen = some.lists(some.sampled_from(room), unique_by=lambda m: m.node)
    return participants_of(draw(chosen)), draw(chosen), draw(some.integers(1, len(room)))


@given(rounds())
def test_every_node_is_a_member_or_standby_and_the_round_is_full(
    given_: tuple[Sequence[Participant], list[Member], int],
) -> None:
    before, ready, max_nodes = given_
    inside, others = ranked(before, ready, max_nodes)
    assert sorted(m.node for m in (*inside, *others)) == sorted(m.node for m in ready)
    assert len(inside) == min(max_nodes, len(ready))


@given(rounds())
def test_the_order_of_the_view_has_no_effect(given_: tuple[Sequence[Participant], list[Member], int]) -> None:
    before, ready, max_nodes = given_
    assert ranked(before, ready, max_nodes) == ranked(before, reversed(ready), max_nodes)


@given(rounds())
def test_members_keep_their_order_and_are_not_displaced(
    given_: tuple[Sequence[Participant], list[Member], int],
) -> None:
    before, ready, max_nodes = given_
    inside, _ = ranked(before, ready, max_nodes)
    staying = [p.node for p in before if p.node in {m.node for m in ready}][:max_nodes]
    assert [m.node for m in inside if m.node in {p.node for p in before}] == staying


@given(rounds())
def test_ranks_do_not_change_in_a_round_of_the_same_size(
    given_: tuple[Sequence[Participant], list[Member], int],
) -> None:
    before, ready, max_nodes = given_
    inside, _ = ranked(before, ready, max_nodes)
    staying = {p.node for p in before} & {m.node for m in ready}
    if len(inside) == len(before):
        moved = [p.node for p, m in zip(before, inside, strict=True) if p.node != m.node and p.node in staying]
        assert not moved


@given(rounds())
def test_rank_0_keeps_its_node(given_: tuple[Sequence[Participant], list[Member], int]) -> None:
    before, ready, max_nodes = given_
    if before and before[0].node in {m.node for m in ready}:
        assert ranked(before, ready, max_nodes)[0][0].node == before[0].node


@given(rooms(), some.integers(1, len(NAMES)))
def test_a_first_round_goes_switch_by_switch(room: list[Member], max_nodes: int) -> None:
    inside, _ = ranked([], room, max_nodes)
    for depth in (1, 2):
        visited = [key for key, _ in groupby(m.topology.split(".")[:depth] for m in inside)]
        assert len(visited) == len({tuple(key) for key in visited})


@given(rooms(), some.data())
def test_a_growing_round_keeps_switches_together(room: list[Member], data: some.DataObject) -> None:
    there = data.draw(some.lists(some.sampled_from(room), min_size=1, unique_by=lambda m: m.node))
    first, _ = ranked([], there, len(room))
    grown, _ = ranked(participants_of(first), room, len(room))
    leaves = [key for key, _ in groupby(m.topology for m in grown if m.topology)]
    assert len(leaves) == len(set(leaves))
