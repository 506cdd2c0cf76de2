import math
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.linearizability.checker import IMPOSSIBLE, UNKNOWN, Model, Operation, State, by_key, check, widened
from tests.linearizability.models import backward, key, late_register, register

pytestmark = pytest.mark.nightly


def op(process: str, call: str, result: Any, invoked: float, returned: float = math.inf) -> Operation:
    """Return an operation, as in ``op("a", "set 1", None, 0, 1)``."""
    return Operation(process, tuple(call.split()), result, invoked, returned)


def commit(process: str, after: int, value: str, won: Any, invoked: float, returned: float = math.inf) -> Operation:
    return Operation(process, ("commit", after, value), won, invoked, returned)


LINEARIZABLE = [
    pytest.param([], id="no operation"),
    pytest.param([op("a", "set 1", None, 0, 1), op("b", "get", "1", 2, 3)], id="a read after a write"),
    pytest.param(
        [op("a", "set 1", None, 0, 3), op("b", "get", None, 1, 2)], id="a read of the old value during a write"
    ),
    pytest.param(
        [op("a", "set 1", None, 0, 3), op("b", "get", "1", 1, 2)], id="a read of the new value during a write"
    ),
    pytest.param([op("a", "add 1", 2, 0, 3), op("b", "add 1", 1, 1, 2)], id="sums in another order than the calls"),
    pytest.param([op("a", "set 1", UNKNOWN, 0), op("b", "get", "1", 5, 6)], id="killed after the write"),
    pytest.param([op("a", "set 1", UNKNOWN, 0), op("b", "get", None, 5, 6)], id="killed before the write"),
    pytest.param(
        [op("a", "set 1", UNKNOWN, 0), op("b", "get", None, 5, 6), op("b", "get", "1", 7, 8)],
        id="a late write without an answer",
    ),
]

NOT_LINEARIZABLE = [
    pytest.param([op("a", "set 1", None, 0, 1), op("b", "get", None, 2, 3)], id="a stale read"),
    pytest.param([op("a", "add 1", 1, 0, 3), op("b", "add 1", 1, 1, 2)], id="a lost update"),
    pytest.param([op("a", "add 1", 1, 0, 1), op("b", "add 1", 3, 2, 3)], id="an update executed twice"),
    pytest.param(
        [op("a", "set 1", None, 0, 9), op("b", "get", "1", 1, 2), op("c", "get", None, 3, 4)],
        id="a new value, then an old value for another process",
    ),
    pytest.param([op("a", "set 1", UNKNOWN, 5), op("b", "get", "1", 0, 1)], id="read before it was written"),
    pytest.param([op("b", "get", "1", 0, 1)], id="a value that was never written"),
    pytest.param(
        [op("a", "set x", None, 0, 1), op("b", "compare_set x y", "x", 2, 3)], id="a comparison without effect"
    ),
    pytest.param([op("a", "delete", True, 0, 1)], id="a deletion of a missing key"),
    pytest.param(
        [op("a", "compare_set 1 2", "2", 2, 3), op("a", "set 1", None, 0, 1), op("b", "compare_set 1 3", "3", 2, 3)],
        id="two winners",
    ),
]


@pytest.mark.parametrize("history", LINEARIZABLE)
def test_a_linearizable_history_is_accepted(history: list[Operation]) -> None:
    verdict = check(history, key, None)
    assert verdict, verdict


@pytest.mark.parametrize("history", NOT_LINEARIZABLE)
def test_a_history_that_is_not_linearizable_is_rejected(history: list[Operation]) -> None:
    verdict = check(history, key, None)
    assert not verdict
    assert verdict.stuck and all(str(operation) in str(verdict) for operation in verdict.stuck)


def test_one_of_two_commits_after_the_same_version_wins() -> None:
    both = [commit("a", 0, "x", True, 0, 3), commit("b", 0, "y", True, 1, 2)]
    assert not check(both, register, ())
    assert check([both[0], commit("b", 0, "y", False, 1, 2)], register, ())


def test_a_late_read_is_linearizable_only_for_the_late_model() -> None:
    history = [commit("a", 0, "x", True, 0, 1), Operation("b", ("read",), [0, None], 2, 3)]
    assert not check(history, register, ())
    assert check(history, late_register, ())
    made_up = Operation("b", ("read",), [1, "never written"], 2, 3)
    assert not check([history[0], made_up], late_register, ())


def test_a_read_of_an_older_version_is_found() -> None:
    reads = [Operation("a", ("read",), [number, None], at, at + 1) for at, number in enumerate([1, 2, 1])]
    assert backward(reads) == [(reads[1], reads[2])]
    assert not backward(reads[:2])


def test_a_history_is_divided_by_object() -> None:
    history = [op("a", "x get", None, 0, 1), op("a", "y get", None, 2, 3), op("b", "x get", None, 0, 1)]
    parts = by_key(history, lambda operation: operation.call[0])
    assert {name: len(part) for name, part in parts.items()} == {"x": 2, "y": 1}


def test_widened_intervals_keep_the_order_within_a_process() -> None:
    stale = [op("a", "set 1", None, 0, 1), op("b", "get", None, 2, 3)]
    assert check(widened(stale, 1, 1), key, None), "the clocks may differ that much"
    own = [op("a", "set 1", None, 0, 1), op("a", "get", None, 2, 3)]
    assert not check(widened(own, 1, 1), key, None), "a process knows its own order"


def test_long_histories_are_checked_quickly() -> None:
    history = [op(str(i % 4), "add 1", i + 1, i, i + 3.5) for i in range(2000)]
    assert check(history, key, None)
    assert not check([*history[:1000], op("x", "add 1", 1000, 1003, 1004), *history[1000:]], key, None)


# Comparison with a check that tries every order


def every_order(history: list[Operation], model: Model, initial: State) -> bool:
    """Yield all orders of all choices of the operations without an answer."""
    unanswered = [operation for operation in history if operation.result == UNKNOWN]
    answered = [operation for operation in history if operation.result != UNKNOWN]
    return any(
        _explains(order, model, initial)
        for chosen in range(1 << len(unanswered))
        for order in permutations(
            answered + [operation for index, operation in enumerate(unanswered) if chosen >> index & 1]
        )
    )


def _explains(order: tuple[Operation, ...], model: Model, state: State) -> bool:
    for index, operation in enumerate(order):
        if any(later.returned < operation.invoked for later in order[index + 1 :]):
            return False
        state = model(state, operation.call, operation.result)
        if state == IMPOSSIBLE:
            return False
    return True


CALLS = st.one_of(
    st.tuples(st.just(("get",)), st.sampled_from([None, "1", "2", UNKNOWN])),
    st.tuples(st.sampled_from([("set", "1"), ("set", "2")]), st.sampled_from([None, UNKNOWN])),
    st.tuples(st.just(("add", 1)), st.sampled_from([1, 2, 3, UNKNOWN])),
    st.tuples(st.just(("delete",)), st.sampled_from([True, False, UNKNOWN])),
    st.tuples(st.just(("compare_set", "1", "2")), st.sampled_from([None, "1", "2", UNKNOWN])),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    """Up to 6 operations, each by its own process, at small integer times."""
    found = []
    for index, (call, result) in enumerate(draw(st.lists(CALLS, max_size=6))):
        invoked = draw(st.integers(0, 6))
        returned = math.inf if result == UNKNOWN else invoked + draw(st.integers(0, 4))
        found.append(Operation(str(index), call, result, invoked, returned))
    return found


@settings(max_examples=300)
@given(histories())
def test_the_verdict_is_that_of_an_exhaustive_check(history: list[Operation]) -> None:
    assert bool(check(history, key, None)) == every_order(history, key, None)
