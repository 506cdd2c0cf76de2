"""Cuts in the network: the fewest nodes without which no pair is cut."""

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcelastic.health.cuts import Cuts
from hpcelastic.health.hangs import HangKind, HangReport, HangVerdict, RankReport, cut_between

NODES = [f"n{number}" for number in range(1, 8)]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], ()),
        ([("n1", "n1")], ()),
        ([("n1", "n2")], ("n2",)),
        ([("n2", "n1"), ("n1", "n2")], ("n2",)),
        ([("n1", "n2"), ("n3", "n4")], ("n2", "n4")),
        ([("n1", "n2"), ("n1", "n3"), ("n1", "n4")], ("n1",)),
        ([("n2", "n1"), ("n3", "n1"), ("n4", "n1"), ("n4", "n5")], ("n1", "n4")),
        ([("n1", "n2"), ("n1", "n3"), ("n2", "n3")], ("n2", "n3")),
        ([("n1", "elsewhere")], ()),
    ],
)
def test_the_fewest_nodes(pairs: list[tuple[str, str]], expected: tuple[str, ...]) -> None:
    assert Cuts(NODES, pairs).fewest() == expected


@given(st.sets(st.sampled_from([*combinations(NODES, 2)])))
def test_no_fewer_nodes_are_enough(pairs: set[tuple[str, str]]) -> None:
    cuts = Cuts(NODES, pairs)
    chosen = cuts.fewest()
    assert all({*pair} & {*chosen} for pair in pairs)
    smaller = combinations(NODES, max(0, len(chosen) - 1))
    assert not chosen or not any(all({*pair} & {*few} for pair in pairs) for few in smaller)


def test_two_halves_of_a_large_round_that_do_not_reach_each_other() -> None:
    nodes = [f"n{number}" for number in range(200)]
    cuts = Cuts(nodes, product(nodes[:120], nodes[120:]))
    assert cuts.fewest() == tuple(nodes[120:])
    text = "the connection between n0 and n120, n0 and n121, n0 and n122, n0 and n123, and 9596 more pairs is cut"
    assert cuts.describe().startswith(text)


@pytest.mark.parametrize("count", [200, 3000])
def test_a_large_round_in_which_each_node_is_cut_off_from_the_next_two(count: int) -> None:
    nodes = [f"n{number}" for number in range(count)]
    pairs = [(one, nodes[(place + step) % count]) for place, one in enumerate(nodes) for step in (1, 2)]
    chosen = {*Cuts(nodes, pairs).fewest()}
    assert all(chosen.intersection(pair) for pair in pairs)
    assert count * 2 / 3 <= len(chosen) <= count * 3 / 4


def test_many_pairs_without_a_common_node() -> None:
    nodes = [f"n{number}" for number in range(4000)]
    assert Cuts(nodes, zip(nodes[::2], nodes[1::2], strict=True)).fewest() == tuple(nodes[1::2])


def node(name: str, first: int, *unreached: str) -> HangReport:
    return HangReport(name, (RankReport(first, name), RankReport(first + 1, name)), unreached)


ALL_WAIT = HangVerdict(HangKind.CONNECTION, (), False, "all wait")


def test_the_verdict_names_the_cut_and_the_ranks_of_the_fewest_nodes() -> None:
    found = cut_between([node("a", 0), node("b", 2, "c"), node("c", 4, "b")], ALL_WAIT)
    assert (found.kind, found.ranks, found.certain) == (HangKind.CUT, (4, 5), True)
    assert found.text == "the connection between b and c is cut, while all nodes reach the run's directory"


@pytest.mark.parametrize("kind", [HangKind.BEHIND, HangKind.STOPPED, HangKind.PROGRESS])
def test_a_rank_that_is_to_blame_precedes_a_cut(kind: HangKind) -> None:
    verdict = HangVerdict(kind, (1,), True, "rank 1")
    assert cut_between([node("a", 0, "b"), node("b", 2)], verdict) == verdict


def test_without_a_cut_the_verdict_stays() -> None:
    assert cut_between([node("a", 0), node("b", 2)], ALL_WAIT) == ALL_WAIT
