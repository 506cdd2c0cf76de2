from math import isqrt

from hypothesis import given
from hypothesis import strategies as st

from hpcelastic.protocol.peers import linked, neighbours

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


def test_a_single_node_has_no_neighbour() -> None:
    assert neighbours(0, 1) == linked(0, 1) == []
