"""When an unchanged lease proves that a node is dead, for given listings and times."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcelastic.protocol.liveness import MIN_MISSING_LISTINGS, Liveness
from hpcelastic.protocol.settings import Expiry

LONGEST, MARGIN = 8.0, 2.0
EXPIRY = LONGEST + MARGIN


def liveness(durations: Mapping[int, float] = {}) -> Liveness[int]:  # not changed
    """Return the ages of leases whose versions are numbers. Other ``durations`` than these are unknown."""
    return Liveness(Expiry(LONGEST, MARGIN), durations.get, lambda new, old: new > old)


def listing(one: Liveness[int], version: int | None, at: float, took: float = 0.0) -> bool:
    """Return whether node ``a`` is alive by a listing that ends at ``at``."""
    listed = {} if version is None else {"a": version}
    return one.observe(listed, ["a"], at - took, at)["a"].alive


def test_a_lease_expires_only_when_a_listing_begins_later_than_its_expiry() -> None:
    one = liveness()
    assert listing(one, 1, 0.0)
    assert listing(one, 1, EXPIRY)
    assert listing(one, 1, EXPIRY + 5, took=5)
    assert not listing(one, 1, EXPIRY + 0.1)


def test_a_lease_ages_from_the_end_of_the_listing_that_first_showed_it() -> None:
    one = liveness()
    listing(one, 1, 5.0, took=5.0)
    assert one.expires("a") == 5.0 + EXPIRY
    assert listing(one, 1, 15.0)


def test_the_last_renewal_was_seen_at_the_end_of_the_listing_that_first_showed_it() -> None:
    one = liveness()
    assert one.renewed_at("a") is None
    for version, end in ((1, 0.0), (2, 4.0), (2, 5.0), (1, 6.0), (None, 7.0)):
        listing(one, version, end, took=1.0)
    assert one.renewed_at("a") == 4.0


@pytest.mark.parametrize("older", [True, False], ids=["an older version", "no version"])
def test_a_listing_without_the_lease_begins_a_new_age(older: bool) -> None:
    one = liveness()
    listing(one, 2, 0.0)
    for step in range(MIN_MISSING_LISTINGS - 1):
        assert listing(one, 1 if older else None, 9.0 + step)
    assert listing(one, 1 if older else None, 19.0), "10 s after the first listing without it"
    assert not listing(one, 1 if older else None, 19.1)


def test_few_listings_without_the_lease_prove_nothing() -> None:
    one = liveness()
    listing(one, 1, 0.0)
    assert all(listing(one, None, 100.0 * step) for step in range(1, MIN_MISSING_LISTINGS))
    assert not listing(one, None, 100.0 * MIN_MISSING_LISTINGS)


def test_each_version_of_a_lease_has_its_own_duration() -> None:
    one = liveness({1: 3.0, 2: 5.0})
    assert listing(one, 1, 0.0) and listing(one, 1, 3.0 + MARGIN)
    assert listing(one, 2, 5.0) and one.expires("a") == 5.0 + 5.0 + MARGIN
    assert listing(one, 2, 12.0)
    assert not listing(one, 2, 12.1)


def test_a_lease_that_is_missing_may_have_been_renewed_with_the_longest_duration() -> None:
    one = liveness({1: 1.0})
    listing(one, 1, 0.0)
    assert all(listing(one, None, 0.5 + step) for step in range(10)), "until 10 s after the first listing without it"
    assert listing(one, None, 10.5)
    assert not listing(one, None, 10.6)


def test_the_longest_known_duration_of_a_living_node_bounds_the_time_to_a_verdict() -> None:
    one = liveness({1: 3.0, 2: 5.0})
    assert one.limit() == EXPIRY, "of an unknown duration"
    one.observe({"a": 1, "b": 2}, [], 0.0, 0.0)
    assert one.limit() == 5.0 + MARGIN
    one.observe({"a": 3, "b": 2}, [], 7.5, 7.5)
    assert one.limit() == EXPIRY, "b is dead, and the duration of a is unknown"


def test_a_lease_that_is_listed_again_keeps_its_age() -> None:
    one = liveness()
    listing(one, 1, 0.0), listing(one, None, 5.0), listing(one, 1, 9.0)
    assert not listing(one, 1, 10.1)


def test_only_a_renewal_makes_a_dead_node_alive() -> None:
    one = liveness()
    listing(one, 1, 0.0)
    assert not listing(one, 1, 11.0) and not listing(one, 1, 12.0)
    assert listing(one, 2, 13.0)


def test_a_dead_node_that_others_take_into_a_round_is_judged_anew() -> None:
    one = liveness()
    listing(one, 1, 0.0)
    assert not listing(one, 1, 11.0)
    one.admit(["a", "unknown"], 20.0)
    assert listing(one, None, 21.0), "the listing may have missed a renewal"
    assert listing(one, 1, 20.0 + EXPIRY), "and this one may be old"
    assert not listing(one, 1, 20.1 + EXPIRY)


def test_a_living_node_that_is_taken_into_a_round_keeps_its_age() -> None:
    one = liveness()
    listing(one, 1, 0.0)
    one.admit(["a"], 9.0)
    assert not listing(one, 1, EXPIRY + 0.1)


def test_a_dead_node_whose_lease_was_removed_is_forgotten_after_an_hour() -> None:
    one, expected = liveness(), ["member"]
    one.observe({"a": 1, "member": 1, "listed": 1, "alive": 1}, expected, 0.0, 0.0)

    def look(at: float, **listed: int) -> list[str]:
        one.observe({"listed": 1, "alive": int(at), **listed}, expected, at, at)
        return one.forgotten

    assert look(11.0, a=1, member=1) == look(12.0) == look(3599.0) == []
    assert one.renewed_at("a") == 0.0
    assert look(3601.0) == ["a"] and look(3602.0) == []
    assert one.renewed_at("a") is None
    assert one.renewed_at("member") == one.renewed_at("listed") == 0.0 and one.renewed_at("alive") == 3602.0


def test_a_node_that_is_not_dead_is_not_forgotten() -> None:
    one = liveness()
    one.observe({"a": 1}, [], 0.0, 0.0)
    one.observe({}, [], 4000.0, 4000.0)
    assert not one.forgotten and one.renewed_at("a") == 0.0


@pytest.mark.parametrize(
    ("at", "proved"), [(EXPIRY, True), (EXPIRY + 0.1, False)], ids=["in time", "after a long sleep"]
)
def test_a_renewal_proves_life_if_the_listing_before_is_recent(at: float, proved: bool) -> None:
    one = liveness()
    assert not one.observe({"a": 1}, [], 0.0, 0.0)["a"].proved
    assert one.observe({"a": 2}, [], at, at)["a"].proved is proved


def test_a_node_that_was_never_listed_expires_too() -> None:
    one = liveness()
    assert listing(one, None, 0.0)
    assert one.expires("a") == float("inf") and one.renewed_at("a") is None
    assert all(listing(one, None, 3.0 * step) for step in range(1, MIN_MISSING_LISTINGS - 1))
    assert not listing(one, None, 20.0)


def test_a_missing_node_is_judged_without_being_expected() -> None:
    one = liveness()
    one.observe({"a": 1}, [], 0.0, 0.0)
    assert set(one.observe({}, [], 1.0, 1.0)) == {"a"}


@given(st.lists(st.tuples(st.floats(0.01, 6.0), st.floats(0.0, 2.0), st.booleans()), max_size=40))
def test_a_node_that_renews_in_time_is_never_dead(turns: list[tuple[float, float, bool]]) -> None:
    """It renews every EXPIRY / 3 seconds. Listings may take any time, and any of them may miss the lease."""
    one, now, missed = liveness(), 0.0, 0
    for pause, took, miss in turns:
        begin = now + pause
        missed = missed + 1 if miss and missed < MIN_MISSING_LISTINGS - 1 else 0
        version = None if missed else int(begin / (EXPIRY / 3))
        now = begin + took
        listed = {} if version is None else {"a": version}
        assert one.observe(listed, ["a"], begin, now)["a"].alive
