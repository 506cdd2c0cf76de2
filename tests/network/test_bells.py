from hpcelastic.network import bells
from hpcelastic.network.bells import GAP, Freshness, Gate


def test_a_bell_counts_once() -> None:
    freshness = Freshness()
    assert [freshness.fresh("a@1", sequence) for sequence in (5, 5, 4, 6, 5)] == [True, False, False, True, False]
    assert freshness.fresh("b@1", 1), "each sender counts its own"


def test_what_is_remembered_is_bounded() -> None:
    freshness = Freshness()
    senders = [f"n{index}@1" for index in range(bells._REMEMBERED + 1)]
    assert all(freshness.fresh(sender, 1) for sender in senders)
    assert not freshness.fresh(senders[-1], 1)
    assert not freshness.fresh(senders[1], 1)
    assert len(freshness._highest) == bells._REMEMBERED


def test_the_first_bell_passes_at_once() -> None:
    gate = Gate()
    assert gate.due is None and gate.passed(100.0) is None
    gate.ring(0)
    assert gate.due is not None and gate.due <= 100.0
    assert gate.passed(100.0) == 0
    assert gate.due is None and gate.passed(200.0) is None


def test_a_flood_becomes_a_few_and_the_last_is_not_lost() -> None:
    gate, passed = Gate(), []
    for step in range(1000):  # one bell a millisecond
        gate.ring(step)
        version = gate.passed(step / 1000)
        passed += [] if version is None else [version]
    assert len(passed) <= 1.0 / GAP + 1
    assert gate.due is not None
    assert gate.passed(gate.due) == 999


def test_of_those_that_wait_the_newest_version_wins() -> None:
    gate = Gate()
    gate.ring(1)
    assert gate.passed(0.0) == 1
    for version in (4, 9, 2):
        gate.ring(version)
    assert gate.passed(GAP / 2) is None
    assert gate.passed(GAP) == 9
