"""Stragglers in the state of the run."""

from dataclasses import replace

import pytest

from hpcelastic.protocol.findings import Slow
from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import Participant, Phase, State
from hpcelastic.protocol.stragglers import record_stragglers

STATE = State(
    "r",
    Settings(NodeRange(2, 3)),
    Phase.RUNNING,
    4,
    tuple(Participant(f"{name}@1", 2, "10.0.0.1", 1) for name in "abc"),
    standbys=("d@1",),
)
SLOW = Slow(4, (3,), "rank 3 on b is slow")


def test_a_finding_is_recorded_once() -> None:
    state = record_stragglers(STATE, SLOW).next
    assert state == replace(STATE, slow=SLOW)
    assert state is not None and record_stragglers(state, SLOW).next is None
    state = record_stragglers(state, Slow(4)).next
    assert state == replace(STATE, slow=Slow(4))


@pytest.mark.parametrize("state", [replace(STATE, round=5), replace(STATE, phase=Phase.JOINING)])
def test_a_finding_of_another_round_changes_nothing(state: State) -> None:
    assert record_stragglers(state, SLOW, [3]).next is None


def test_the_node_is_drained_if_another_one_stands_by() -> None:
    known = record_stragglers(STATE, SLOW).next
    assert known is not None
    state = record_stragglers(known, SLOW, [3]).next
    assert state is not None and state.drained == ("b",) and state.reason == "rank 3 on b is slow; b is replaced"
    assert record_stragglers(state, SLOW, [3]).next is None


@pytest.mark.parametrize(("places", "drained"), [("ssttt", ("b",)), ("sst", ()), ("sttuu", ("b",))])
def test_with_groups_under_one_switch_the_others_must_be_enough(places: str, drained: tuple[str, ...]) -> None:
    members = tuple(Participant(f"{'abcde'[i]}@1", 2, "10.0.0.1", 1, topology=place) for i, place in enumerate(places))
    nodes = NodeRange(2, 6, multiple=2, within="switch")
    state = replace(STATE, settings=Settings(nodes), participants=members)
    decided = record_stragglers(state, SLOW, [3]).next
    assert decided is not None and decided.drained == drained


@pytest.mark.parametrize(
    ("standbys", "ranks"),
    [((), (3,)), (("d@1",), (3, 4)), (("d@1", "e@1", "f@1", "g@1"), (0, 2, 4))],
    ids=["no node stands by", "too few stand by", "none would be left"],
)
def test_otherwise_the_finding_is_only_recorded(standbys: tuple[str, ...], ranks: tuple[int, ...]) -> None:
    state = record_stragglers(replace(STATE, standbys=standbys), replace(SLOW, ranks=ranks), ranks).next
    assert state is not None and state.slow is not None and not state.drained
