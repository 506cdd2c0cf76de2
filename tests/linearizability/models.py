"""The sequential semantics of the store's operations. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.linearizability.checker import IMPOSSIBLE, UNKNOWN, Call, Operation, State


def _expect(result: Any, meant: Any, after: State) -> State:
    return after if result in (UNKNOWN, meant) else IMPOSSIBLE


def key(state: State, call: Call, result: Any) -> State:
    """The model of one key of a `KeyValueStore`. The state is its value, a str or None."""
    name, *arguments = call
    if name == "get":
        return _expect(result, state, state)
    if name == "set":
        return _expect(result, None, arguments[0])
    if name == "add":
        total = int(str(state or 0)) + int(arguments[0])
        return _expect(result, total, str(total))
    if name == "delete":
        return _expect(result, state is not None, None)
    assert name == "compare_set"
    expected, desired = arguments
    after = desired if state == expected else state
    return _expect(result, after, after)


def register(state: State, call: Call, result: Any) -> State:
    """The model of a `Register`. The state is the tuple of all its values, and a read returns the newest one."""
    assert isinstance(state, tuple)
    if call[0] == "read":
        return _expect(result, _version(state, len(state)), state)
    return _commit(state, call, result)


def late_register(state: State, call: Call, result: Any) -> State:
    """The model of a `Register` on a filesystem with late listings: a read returns any version."""
    assert isinstance(state, tuple)
    if call[0] == "read":
        seen = result == UNKNOWN or (result[0] <= len(state) and result == _version(state, result[0]))
        return state if seen else IMPOSSIBLE
    return _commit(state, call, result)


def _commit(state: tuple[Any, ...], call: Call, result: Any) -> State:
    name, after, value = call
    assert name == "commit"
    won = len(state) == after
    return _expect(result, won, (*state, value) if won else state)


def _version(state: tuple[Any, ...], number: int) -> list[Any]:
    return [number, state[number - 1] if number else None]


def backward(history: Iterable[Operation]) -> list[tuple[Operation, Operation]]:
    """Return the pairs of reads of a register by one process of which the later read returned an older version."""
    last: dict[str, Operation] = {}
    pairs = []
    for operation in sorted(history, key=lambda operation: operation.invoked):
        if operation.call[0] == "read" and operation.result != UNKNOWN:
            before = last.get(operation.process)
            if before is not None and before.result[0] > operation.result[0]:
                pairs.append((before, operation))
            last[operation.process] = operation
    return pairs
