from collections import Counter
from math import isqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcelastic.protocol.peers import buddy, far, linked, neighbours

COUNTS = st.integers(2, 70)


@given(COUNTS)
def test_each_node_links_to_at_most_two_others(count: int) -> None:
    for index in range(count):
        near = neighbours(index, count)
        assert 1 <= len(near) <= 2 and index not in near and len(set(near)) == len(near)
        assert all(0 <= there < count for there in near)


@given(COUNTS)
def test_every_node_has_an_observer(count: int) -> None:
    assert {there for index in range(count) for there in neighbours(index, count)} == set(range(count))


@given(COUNTS)
def test_links_are_symmetric_and_few(count: int) -> None:
    links = [set(linked(index, count)) for index in range(count)]
    for index, near in enumerate(links):
        calls = set(neighbours(index, count))
        called = {there for there in range(count) if index in neighbours(there, count)}
        assert near == calls | called
        assert 1 <= len(near) <= 4
        assert all(index in links[there] for there in near)


@given(st.integers(9, 300), st.data())
def test_a_row_of_lost_members_keeps_neighbours(count: int, data: st.DataObject) -> None:
    """Each of sqrt(count) consecutive members that are lost together keeps a neighbour."""
    start = data.draw(st.integers(0, count - 1))
    gone = {(start + step) % count for step in range(isqrt(count))}
    assert all(set(linked(index, count)) - gone for index in gone)


@pytest.mark.parametrize("count", [16, 64, 100, 128, 256, 512, 1024, 4096, 10_000])
def test_few_members_have_other_neighbours_after_a_loss(count: int) -> None:
    assert far(count) == far(count - 1)
    lost = count // 2
    before, after = ([{*linked(index, size)} for index in range(size)] for size in (count, count - 1))
    moved = [{there - (there > lost) for there in near if there != lost} for near in before]
    del moved[lost]
    assert sum(one != other for one, other in zip(moved, after, strict=True)) <= 2 * far(count) + 2


def test_a_single_node_has_no_neighbour() -> None:
    assert neighbours(0, 1) == linked(0, 1) == []


TOPOLOGIES = st.lists(st.sampled_from(["", "s1", "s2", "s3", "s1.s2"]), min_size=2, max_size=40)
"""The switches above each member."""


@given(TOPOLOGIES)
def test_each_member_has_the_copies_of_one_other(topologies: list[str]) -> None:
    chosen = [buddy(index, topologies) for index in range(len(topologies))]
    assert sorted(there for there in chosen if there is not None) == list(range(len(topologies)))
    assert all(there != index for index, there in enumerate(chosen))


@given(st.integers(2, 9), st.integers(1, 9))
def test_copies_are_under_another_switch_if_groups_are_equal(groups: int, size: int) -> None:
    topologies = [f"s{group}" for group in range(groups) for _ in range(size)]
    for index, topology in enumerate(topologies):
        there = buddy(index, topologies)
        assert there is not None and topologies[there] != topology


@given(TOPOLOGIES.map(sorted))
def test_copies_are_under_another_switch_as_far_as_possible(topologies: list[str]) -> None:
    """The members of a switch that has most of them cannot all have their copies under another switch."""
    chosen = [buddy(index, topologies) for index in range(len(topologies))]
    same = sum(there is not None and topologies[there] == topologies[index] for index, there in enumerate(chosen))
    largest = max(Counter(topologies).values())
    assert same == max(0, 2 * largest - len(topologies))


def test_a_single_node_has_no_buddy() -> None:
    assert buddy(0, ["s1"]) is None
