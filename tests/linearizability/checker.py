"""The check whether a concurrent history is equivalent to a sequential one. Pure functions.

Sources: Wing and Gong, Testing and Verifying Concurrent Objects (1993); Lowe, Testing for Linearizability (2017), for
the memory: a set of operations with the resulting state is explored once. No maintained Python library does this.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

Call: TypeAlias = "tuple[Any, ...]"
State: TypeAlias = Hashable

UNKNOWN: Final = "unknown"
"""The result of an operation without an answer. It may have taken effect at any time since its call, or not at all."""

IMPOSSIBLE: Final = "impossible"
"""The answer of a model if no operation can have this result in this state."""

Model: TypeAlias = "Callable[[State, Call, Any], State]"
"""Maps ``(state, call, result)`` to the next state, or to `IMPOSSIBLE`. The result may be `UNKNOWN`."""


@dataclass(frozen=True)
class Operation:
    """One call of a process. A process makes one call at a time. Times are in seconds of one clock."""

    process: str
    call: Call
    result: Any
    invoked: float
    returned: float = math.inf

    def __str__(self) -> str:
        return f"{self.invoked:.6f} to {self.returned:.6f}  {self.process}: {self.call} -> {self.result!r}"


@dataclass(frozen=True)
class Verdict:
    """The result of a check. ``stuck`` has the remaining operations at the furthest point, of which none can be
    next."""

    linearizable: bool
    stuck: tuple[Operation, ...] = ()

    def __bool__(self) -> bool:
        return self.linearizable

    def __str__(self) -> str:
        return "linearizable" if self else "none of these can come next:\n" + "\n".join(map(str, self.stuck))


def check(history: Iterable[Operation], model: Model, initial: State) -> Verdict:
    """Search for an order of the operations that respects time and that the model allows."""
    operations = sorted(history, key=lambda operation: operation.invoked)
    needed = sum(1 << index for index, operation in enumerate(operations) if operation.result != UNKNOWN)
    visited, paths = {(0, initial)}, [(0, initial)]
    furthest = 0
    while paths:
        done, state = paths.pop()
        if done & needed == needed:
            return Verdict(True)
        furthest = max(furthest, done & needed, key=int.bit_count)
        for index in reversed(list(_next(operations, done))):
            after = model(state, operations[index].call, operations[index].result)
            place = (done | 1 << index, after)
            if after != IMPOSSIBLE and place not in visited:
                visited.add(place)
                paths.append(place)
    return Verdict(False, tuple(operations[index] for index in _next(operations, furthest)))


def _next(operations: Sequence[Operation], done: int) -> Iterator[int]:
    """Yield the operations that can be next: those that were called before any remaining one returned."""
    first_return = math.inf
    start = (~done & done + 1).bit_length() - 1
    waiting = set[str]()
    for index in range(start, len(operations)):
        operation = operations[index]
        if operation.invoked > first_return:
            return
        if not done >> index & 1:
            if operation.process not in waiting:
                yield index
            if operation.result != UNKNOWN:  # a later call of the same process follows it
                waiting.add(operation.process)
            first_return = min(first_return, operation.returned)


def by_key(history: Iterable[Operation], key: Callable[[Operation], Hashable]) -> dict[Hashable, list[Operation]]:
    """Return the histories of independent objects. All are linearizable if and only if each of them is."""
    parts: dict[Hashable, list[Operation]] = defaultdict(list)
    for operation in history:
        parts[key(operation)].append(operation)
    return dict(parts)


def widened(history: Iterable[Operation], before: float, after: float) -> list[Operation]:
    """Return the history with every interval extended, for clocks with a limited accuracy."""
    return [replace(o, invoked=o.invoked - before, returned=o.returned + after) for o in history]
