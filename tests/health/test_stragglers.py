"""Which ranks count as stragglers, by the fractions of their time in which they work."""

import pytest

from hpcelastic.health.stragglers import WorkFraction, stragglers

SAMPLES = 400


def fractions(*worked: float, samples: int = SAMPLES) -> list[WorkFraction]:
    return [WorkFraction(rank, f"n{rank}", value, samples) for rank, value in enumerate(worked)]


@pytest.mark.parametrize(
    ("worked", "found"),
    [
        pytest.param((0.7, 0.7, 0.7, 0.98), [3], id="one is slow, the others wait for it"),
        pytest.param((0.95, 0.6, 0.99, 0.6, 0.6), [2, 0], id="the slowest first"),
        pytest.param((0.98, 0.97, 0.96, 0.99), [], id="all are alike"),
        pytest.param((0.85, 0.86, 0.87, 0.98), [], id="slower, but not enough"),
        pytest.param((0.5, 0.98), [1], id="of two ranks the slow one"),
        pytest.param((0.1, 0.12, 0.1, 0.13), [], id="a difference within the error of the samples"),
        pytest.param((0.0, 0.0, 0.0, 0.9), [3], id="the others only wait"),
        pytest.param((1.0,), [], id="a rank alone"),
        pytest.param((), [], id="no rank"),
    ],
)
def test_stragglers(worked: tuple[float, ...], found: list[int]) -> None:
    assert [each.rank for each in stragglers(fractions(*worked), 1.2)] == found


def test_a_finding_stays_until_the_rank_is_clearly_faster() -> None:
    between = fractions(0.8, 0.8, 0.8, 0.92)  # 1.15 times the median
    assert not stragglers(between, 1.2)
    assert [each.rank for each in stragglers(between, 1.2, known=[3])] == [3]
    assert not stragglers(fractions(0.8, 0.8, 0.8, 0.86), 1.2, known=[3])


def test_the_text_names_rank_node_and_numbers() -> None:
    (found,) = stragglers(fractions(0.7, 0.7, 0.7, 0.98), 1.2)
    assert found.text == (
        "rank 3 on n3 is 1.40 times slower than the median rank: it works 98% of the time, the median rank 70%, "
        "and waits for others in the rest"
    )
