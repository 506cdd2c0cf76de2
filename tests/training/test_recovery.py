"""The choice of the state with which a round begins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcelastic.training.recovery import Choice, Held, choose

HELD = st.one_of(st.none(), st.builds(Held, st.integers(1, 4), st.integers(0, 4)))


@pytest.mark.parametrize(
    ("held", "saved", "expected"),
    [
        pytest.param([None, None], None, Choice(None, (), (0, 1)), id="training begins"),
        pytest.param([None, None], Held(1, 5), Choice(Held(1, 5), (), (0, 1)), id="only the disk has a state"),
        pytest.param([Held(1, 7), None], Held(1, 5), Choice(Held(1, 7), (0,), (1,)), id="a newcomer receives"),
        pytest.param([Held(1, 7), Held(1, 6)], None, Choice(Held(1, 7), (0,), (1,)), id="one step apart"),
        pytest.param([Held(1, 5), None], Held(1, 5), Choice(Held(1, 5), (0,), (1,)), id="memory before disk"),
        pytest.param([Held(1, 9), None], Held(3, 5), Choice(Held(3, 5), (), (0, 1)), id="parked since an old round"),
        pytest.param([Held(2, 7)] * 3, Held(1, 9), Choice(Held(2, 7), (0, 1, 2), ()), id="all go on"),
    ],
)
def test_the_newest_whole_state_is_chosen(held: list[Held | None], saved: Held | None, expected: Choice) -> None:
    assert choose(held, saved) == expected


@given(st.lists(HELD, min_size=1, max_size=6), HELD)
def test_nothing_newer_is_lost_and_each_rank_has_one_part(held: list[Held | None], saved: Held | None) -> None:
    choice = choose(held, saved)
    known = [state for state in (*held, saved) if state is not None]
    assert choice.state == max(known, default=None)
    assert sorted((*choice.sources, *choice.receivers)) == list(range(len(held)))
    assert all(held[rank] == choice.state for rank in choice.sources)
    assert all(held[rank] != choice.state or choice.state is None for rank in choice.receivers)
    if choice.sources:
        assert {choice.source_of(part) for part in range(len(held))} == set(choice.sources)
