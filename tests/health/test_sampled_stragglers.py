"""Stragglers among ranks whose work fractions are estimated from samples."""

import random

from hypothesis import given
from hypothesis import strategies as st

from hpcelastic.health.stragglers import WorkFraction, stragglers


def sampled(chance: random.Random, own: list[float], samples: int = 130) -> list[WorkFraction]:
    """Return the estimates for ranks that work so long in a step, which takes the time of the slowest."""
    step = max(own) * 1.02
    estimates = [sum(chance.random() < each / step for _ in range(samples)) / samples for each in own]
    return [WorkFraction(rank, f"n{rank}", value, samples) for rank, value in enumerate(estimates)]


@given(seed=st.integers(0, 2**32), ranks=st.integers(2, 64))
def test_equal_ranks_are_never_stragglers(seed: int, ranks: int) -> None:
    chance = random.Random(seed)
    own = [chance.uniform(0.97, 1.03) for _ in range(ranks)]
    assert not stragglers(sampled(chance, own), 1.2)


@given(seed=st.integers(0, 2**32), ranks=st.integers(3, 64), factor=st.floats(1.8, 4.0))
def test_a_slow_rank_is_found(seed: int, ranks: int, factor: float) -> None:
    # A rank of three that is slower by 1.6 is missed with one sample in two thousand.
    chance = random.Random(seed)
    own = [chance.uniform(0.97, 1.03) for _ in range(ranks)]
    slow = chance.randrange(ranks)
    own[slow] *= factor
    assert [each.rank for each in stragglers(sampled(chance, own), 1.2)][:1] == [slow]
