"""Who takes part, and with which ranks. A node is written ``NAME/SWITCH``, or ``NAME/TOP.LEAF``."""

from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hpcelastic.protocol.ranking import ranked
from hpcelastic.protocol.state import Member, NodeState, Participant, participant

JOB = "7.0"


def nodes(text: str, **changes: object) -> list[Member]:
    return [node(word, order=order, **changes) for order, word in enumerate(text.split())]


def node(word: str, **changes: object) -> Member:
    """``NAME/SWITCH:SIZE``, of which only the name must be there."""
    word, _, size = word.partition(":")
    name, _, topology = word.partition("/")
    made = Member(f"{name}@0", NodeState.READY, 1, int(size or 2), "10.0.0.1", 4000, topology=topology, job=JOB)
    return replace(made, **changes)  # type: ignore[arg-type]  # its fields


def round_of(text: str) -> list[Participant]:
    return [participant(member) for member in nodes(text)]


def shown(before: list[Participant], ready: list[Member], max_nodes: int = 9) -> str:
    """Names by rank, and after ``+`` the others."""
    inside, others = ranked(before, ready, max_nodes)
    return " ".join([*(m.name for m in inside), *(f"+{m.name}" for m in others)])


@pytest.mark.parametrize(
    ("ready", "max_nodes", "ranks"),
    [
        pytest.param("n1 n2 n3", 9, "n1 n2 n3", id="SLURM's order, where no switch is known"),
        pytest.param("n3 n1 n2", 9, "n3 n1 n2", id="which goes before names"),
        pytest.param("n1/s1 n2/s2 n3/s1 n4/s2", 9, "n1 n3 n2 n4", id="switch by switch"),
        pytest.param("n1/s10 n2/s2 n3/s10", 9, "n2 n1 n3", id="switch 2 before switch 10"),
        pytest.param("a/t1.s b/t2.s c/t1.s", 9, "a c b", id="switches of one name under others are others"),
        pytest.param("a/t.s1 b/u.s1 c/t.s2 d/u.s1", 9, "a c b d", id="what is under one switch stays together"),
        pytest.param("a/s01 b/s1 c/s01 d/s1", 9, "a c b d", id="switches of one number are not one"),
        pytest.param("a b/s1 c d/s1", 9, "a c b d", id="of some the switch is unknown"),
        pytest.param("a/s1 b/s2 c/s2 d/s2", 3, "b c d +a", id="one switch that holds all"),
        pytest.param("a/s1 b/s1 c/s1 d/s2 e/s2", 2, "d e +a +b +c", id="the smallest switch that holds all"),
        pytest.param("a/s1 b/s2 c/s2 d/s3 e/s3 f/s3", 5, "b c d e f +a", id="as few switches as may be"),
        pytest.param("a/t.s1 b/u.s2 c/u.s3 d/u.s3", 3, "b c d +a", id="under one switch at the top"),
        pytest.param("a b c", 2, "a b +c", id="the first, where no switch is known"),
    ],
)
def test_a_first_round(ready: str, max_nodes: int, ranks: str) -> None:
    assert shown([], nodes(ready), max_nodes) == ranks


def test_without_an_order_names_are_counted_as_people_do() -> None:
    words = ("n10", "n9", "n2_10", "n2_9", "n1")
    assert shown([], [node(word) for word in words]) == "n1 n2_9 n2_10 n9 n10"


def test_jobs_are_not_mixed_by_orders_of_their_own() -> None:
    first, second = nodes("n1 n2 n3"), nodes("n4 n5 n6", job="8.0")
    assert shown([], [*second, *first]) == "n1 n2 n3 n4 n5 n6"


@pytest.mark.parametrize(
    ("before", "ready", "max_nodes", "ranks"),
    [
        pytest.param("c a b", "a b c", 9, "c a b", id="who was there keeps the rank"),
        pytest.param("a b c", "a c", 9, "a c", id="the others close up"),
        pytest.param("a b c", "a c x", 9, "a x c", id="a newcomer takes the seat of one that was lost"),
        pytest.param("a b c", "x y c", 9, "x y c", id="rank 0's too"),
        pytest.param("a b c", "c x", 9, "x c", id="of two seats the first"),
        pytest.param("a/s1 b/s2 c/s1", "c/s1 x/s2", 9, "x c", id="of two seats the nearest"),
        pytest.param("a/s1 b/s2 c/s3", "c/s3 x/s2 y/s1", 9, "y x c", id="each the nearest"),
        pytest.param("a/t.s1 b/u.s2 c/v.s3", "c/v.s3 x/u.s4 y/t.s4", 9, "y x c", id="as near as may be"),
        pytest.param("a:2 b:4 c:2", "c:2 x:2 y:4", 9, "x y c", id="each the one of its size"),
        pytest.param("a/s1:2 b/s2:4 c:2", "c:2 x/s1:4 y/s2:2", 9, "y x c", id="size goes before nearness"),
        pytest.param("a:2 b:2", "b:2 x:4", 9, "x b", id="one of another size is better than none"),
        pytest.param("a b c", "a c x y", 3, "a x c +y", id="there is one seat for two"),
        pytest.param("a/s1 b/s2", "a/s1 x/s1 y/s2", 2, "a y +x", id="which the nearest takes"),
        pytest.param("a b", "a b x y", 9, "a b x y", id="a round grows at its end"),
        pytest.param("b a", "a b y x", 3, "b a y +x", id="as far as there is room"),
        pytest.param("a b", "a b x", 2, "a b +x", id="nobody is displaced"),
        pytest.param("a b c d", "a b c d x", 2, "a b +c +d +x", id="the run was reopened for fewer"),
        pytest.param("a b c", "c x", 1, "c +x", id="the seat is there, but no room"),
        pytest.param("a/s1 b/s2", "a/s1 b/s2 x/s1", 9, "a x b", id="a newcomer goes behind its switch"),
        pytest.param("a/t.s1 b/u.s2", "a/t.s1 b/u.s2 x/t.s9", 9, "a x b", id="or behind the next above it"),
        pytest.param("a/t.s1 b/u.s2", "a/t.s1 b/u.s2 x/t.s0 y/t.s1", 9, "a y x b", id="the nearest first"),
        pytest.param("a/s1 b/s2", "a/s1 b/s2 x/s3 y z/s3", 9, "a b y x z", id="a switch of its own goes to the end"),
        pytest.param("a/s1", "a/s1 x/s2 y/s2 z/s1", 3, "a z x +y", id="a switch that is there is filled up first"),
        pytest.param("a/s1 b/s2", "x/s2 y/s1", 9, "y x", id="nobody stays"),
        pytest.param("a b", "b@1 a@1", 9, "a@1 b@1", id="who is back takes the old seat"),
    ],
)
def test_a_later_round(before: str, ready: str, max_nodes: int, ranks: str) -> None:
    members = [replace(m, node=m.node.removesuffix("@0") if "@1" in m.node else m.node) for m in nodes(ready)]
    assert shown(round_of(before), members, max_nodes) == ranks.replace("@1", "")


# What holds for all rounds

NAMES = [f"n{i}" for i in range(12)]
SWITCHES = some.sampled_from(["", "t.s1", "t.s2", "u.s1", "u.s10", "block3"])


@some.composite
def rooms(draw: some.DrawFn) -> list[Member]:
    """A machine room: all its nodes, each ready."""
    sizes = some.sampled_from(draw(some.sampled_from([[2], [1, 2, 4]])))
    jobs = some.sampled_from(draw(some.sampled_from([["7.0"], ["7.0", "8.0"]])))
    return [
        Member(f"{name}@0", NodeState.READY, 1, draw(sizes), "", 0, order=i, job=draw(jobs), topology=draw(SWITCHES))
        for i, name in enumerate(NAMES)
    ]


@some.composite
def rounds(draw: some.DrawFn) -> tuple[list[Participant], list[Member], int]:
    """A last round, the nodes that are ready after it, and how many the next may have."""
    room = draw(rooms())
    chosen = some.lists(some.sampled_from(room), unique_by=lambda m: m.node)
    return [participant(m) for m in draw(chosen)], draw(chosen), draw(some.integers(1, len(room)))


@given(rounds())
def test_everybody_is_somewhere_and_the_round_is_full(given_: tuple[list[Participant], list[Member], int]) -> None:
    before, ready, max_nodes = given_
    inside, others = ranked(before, ready, max_nodes)
    assert sorted(m.node for m in (*inside, *others)) == sorted(m.node for m in ready)
    assert len(inside) == min(max_nodes, len(ready))


@given(rounds())
def test_the_order_in_which_nodes_are_seen_says_nothing(given_: tuple[list[Participant], list[Member], int]) -> None:
    before, ready, max_nodes = given_
    assert ranked(before, ready, max_nodes) == ranked(before, reversed(ready), max_nodes)


@given(rounds())
def test_who_stays_keeps_the_order_and_is_not_displaced(given_: tuple[list[Participant], list[Member], int]) -> None:
    before, ready, max_nodes = given_
    inside, _ = ranked(before, ready, max_nodes)
    staying = [p.node for p in before if p.node in {m.node for m in ready}][:max_nodes]
    assert [m.node for m in inside if m.node in {p.node for p in before}] == staying


@given(rounds())
def test_while_the_round_is_as_large_nobody_moves(given_: tuple[list[Participant], list[Member], int]) -> None:
    before, ready, max_nodes = given_
    inside, _ = ranked(before, ready, max_nodes)
    staying = {p.node for p in before} & {m.node for m in ready}
    if len(inside) == len(before):
        moved = [p.node for p, m in zip(before, inside, strict=True) if p.node != m.node and p.node in staying]
        assert not moved


@given(rounds())
def test_rank_0_stays_with_its_node(given_: tuple[list[Participant], list[Member], int]) -> None:
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
def test_a_round_that_grows_stays_together(room: list[Member], data: some.DataObject) -> None:
    there = data.draw(some.lists(some.sampled_from(room), min_size=1, unique_by=lambda m: m.node))
    first, _ = ranked([], there, len(room))
    grown, _ = ranked([participant(m) for m in first], room, len(room))
    leaves = [key for key, _ in groupby(m.topology for m in grown if m.topology)]
    assert len(leaves) == len(set(leaves))
