"""Groups of nodes that stay under one switch. A node is written ``NAME/SWITCH:WORKERS``, as in test_ranking."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hpcelastic.protocol.groups import ranked_groups
from hpcelastic.protocol.settings import NodeRange
from hpcelastic.protocol.state import Member, Participant, participants_of
from tests.protocol.test_ranking import node, nodes, round_of

PAIRS = "a/s1 b/s1 c/s2 d/s2 e/s1 f/s1"
"""The round of most cases: two groups under s1, with one under s2 between them."""


def shown(before: str, ready: str, max_nodes: int = 8, size: int = 2) -> str:
    """Return the names by rank, with ``|`` between groups, and after ``+`` the standbys."""
    inside, others = ranked_groups(round_of(before), nodes(ready), max_nodes, size)
    groups = [" ".join(m.name for m in inside[start : start + size]) for start in range(0, len(inside), size)]
    return " ".join([" | ".join(groups), *(f"+{m.name}" for m in others)])


@pytest.mark.parametrize(
    ("ready", "max_nodes", "ranks"),
    [
        pytest.param("a/s1 b/s2 c/s1 d/s2", 8, "a c | b d", id="switch by switch"),
        pytest.param("a/s1 b/s1 c/s1 d/s2 e/s2", 8, "a b | d e +c", id="a node that makes no group stands by"),
        pytest.param("a/s1 b/s2 c/s3", 8, " +a +b +c", id="no group at all"),
        pytest.param("a/s1 b/s2 c/s2 d/s2 e/s2", 4, "b c | d e +a", id="one switch that holds all"),
        pytest.param("a/s1 b/s1 c/s1 d/s1 e/s2 f/s2", 2, "e f +a +b +c +d", id="the smallest switch that holds all"),
        pytest.param("a/t.s1 b/t.s2 c/t.s1 d/t.s2", 8, "a c | b d", id="the lowest switch counts"),
        pytest.param("a b c", 8, "a b +c", id="nodes without a known switch are together"),
    ],
)
def test_a_first_round(ready: str, max_nodes: int, ranks: str) -> None:
    assert shown("", ready, max_nodes) == ranks


@pytest.mark.parametrize(
    ("ready", "max_nodes", "ranks"),
    [
        pytest.param(PAIRS, 8, "a b | c d | e f", id="nothing changes"),
        pytest.param("a/s1 b/s1 c/s2 e/s1 f/s1", 8, "a b | e f +c", id="a group that lost a node is dissolved"),
        pytest.param("a/s1 b/s1 c/s2 e/s1 f/s1 x/s1", 8, "a b | e f +c +x", id="a newcomer elsewhere is no help"),
        pytest.param("a/s1 b/s1 c/s2 e/s1 f/s1 x/s2", 8, "a b | c x | e f", id="a newcomer takes the lost seat"),
        pytest.param("a/s1 c/s2 d/s2 f/s1", 8, "a f | c d", id="two incomplete groups make one"),
        pytest.param("a/s1 c/s2 f/s1", 8, "a f +c", id="a node of another switch does not take a seat"),
        pytest.param("b/s1 c/s2 d/s2 f/s1", 8, "f b | c d", id="a node of a group that stays keeps its seat"),
        pytest.param("a/s1 c/s2 d/s2 f/s1 x/s1", 8, "a f | c d +x", id="members come before newcomers"),
        pytest.param("a/s1 c/s2 d/s2 f/s1 x/s1 y/s1", 8, "a x | c d | y f", id="both groups are filled"),
        pytest.param(f"{PAIRS} x/s2 y/s2", 8, "a b | c d | x y | e f", id="a new group follows those of its switch"),
        pytest.param(f"{PAIRS} x/s3 y/s3", 8, "a b | c d | e f | x y", id="a new group at another switch is last"),
        pytest.param(f"{PAIRS} x/s2 y/s3", 8, "a b | c d | e f +x +y", id="newcomers apart make no group"),
        pytest.param(f"{PAIRS} x/s2 y/s2", 6, "a b | c d | e f +x +y", id="no more than nodes.max"),
        pytest.param(PAIRS, 4, "a b | c d +e +f", id="the last group stands by"),
        pytest.param("b/s1 c/s2 d/s2 e/s1 f/s1 x/s1", 4, "c d | e f +b +x", id="whole groups come first"),
        pytest.param("a/s2 b/s1 c/s2 d/s2 e/s1 f/s1", 8, "c d | e f +a +b", id="a node that moved to another switch"),
    ],
)
def test_a_round_after_another(ready: str, max_nodes: int, ranks: str) -> None:
    assert shown(PAIRS, ready, max_nodes) == ranks


def test_groups_of_another_size_are_made_anew() -> None:
    """The job file may have another size after the run was resumed."""
    ready = "a/s1 b/s1 c/s1 d/s1 e/s2 f/s2 x/s2 y/s2"
    assert shown("a/s1 b/s1 c/s1 d/s1 e/s2 f/s2", ready, size=4) == "a b c d | e f x y"


def test_a_node_with_as_many_workers_takes_the_seat() -> None:
    assert shown("a/s1:2 b/s1:4", "a/s1:2 x/s1:2 y/s1:4") == "a y +x"


NAMES = "abcdefgh"


@some.composite
def rounds(draw: some.DrawFn) -> tuple[Sequence[Participant], list[Member], int, int]:
    """A last round with whole groups, the nodes that are ready after it, the greatest size, and the size of a group."""
    size = draw(some.integers(1, 3))
    switches = some.sampled_from(["s1", "s2", "t.s1", ""])
    room = [node(f"{name}/{draw(switches)}:{draw(some.integers(1, 2))}", order=i) for i, name in enumerate(NAMES)]
    chosen = some.lists(some.sampled_from(room), unique_by=lambda m: m.node)
    before, _ = ranked_groups((), draw(chosen), len(NAMES), size)
    return participants_of(before), draw(chosen), size * draw(some.integers(1, len(NAMES))), size


@given(rounds())
def test_every_node_is_a_member_or_standby_and_the_round_is_as_large_as_possible(
    given_: tuple[Sequence[Participant], list[Member], int, int],
) -> None:
    before, ready, max_nodes, size = given_
    inside, others = ranked_groups(before, ready, max_nodes, size)
    assert sorted(m.node for m in (*inside, *others)) == sorted(m.node for m in ready)
    most = NodeRange(size, max_nodes, multiple=size, within="switch" if size > 1 else None)
    assert len(inside) == min(max_nodes, most.most_of(m.topology for m in ready))


@given(rounds())
def test_each_group_is_at_one_place(given_: tuple[Sequence[Participant], list[Member], int, int]) -> None:
    before, ready, max_nodes, size = given_
    inside, _ = ranked_groups(before, ready, max_nodes, size)
    groups = [inside[start : start + size] for start in range(0, len(inside), size)]
    assert all(len({m.topology for m in group}) == 1 and len(group) == size for group in groups)


@given(rounds())
def test_a_group_that_lost_no_node_stays_as_it_is(given_: tuple[Sequence[Participant], list[Member], int, int]) -> None:
    before, ready, max_nodes, size = given_
    inside, _ = ranked_groups(before, ready, max_nodes, size)
    here, members = {m.name for m in ready}, [m.name for m in inside]
    old = [[p.name for p in before[start : start + size]] for start in range(0, len(before), size)]
    new = [members[start : start + size] for start in range(0, len(members), size)]
    whole = [group for group in old if here.issuperset(group)]
    assert [group for group in new if group in whole] == whole[: max_nodes // size]


@given(rounds())
def test_the_order_of_the_view_has_no_effect(given_: tuple[Sequence[Participant], list[Member], int, int]) -> None:
    before, ready, max_nodes, size = given_
    assert ranked_groups(before, ready, max_nodes, size) == ranked_groups(before, reversed(ready), max_nodes, size)


@given(rounds())
def test_a_member_is_not_left_out_for_a_newcomer_at_its_place(
    given_: tuple[Sequence[Participant], list[Member], int, int],
) -> None:
    before, ready, max_nodes, size = given_
    inside, others = ranked_groups(before, ready, max_nodes, size)
    old = {p.name for p in before}
    places = {m.topology for m in others if m.name in old}
    assert not [m.name for m in inside if m.name not in old and m.topology in places]
