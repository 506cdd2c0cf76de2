"""The return of a training to an older state, because the newest one is poisoned.

Pure. A worker finds that the loss is not finite, or has risen suddenly. Its data, its state, its machine or the script
may be the cause. If it happens in the same step again, the next attempt excludes one more of these:

1. Training returns to the newest checkpoint: the state in memory was bad.
2. It returns to the checkpoint before that: the checkpoint was bad too.
3. The node of the worker is drained as well, if enough other nodes are there: its hardware computes wrongly.

Then the run ends. A state is excluded by the round and the step that it has in its name, so nothing is removed.
"""

from collections.abc import Iterable
from dataclasses import replace

from hpcelastic.protocol.findings import Rollback
from hpcelastic.protocol.state import Failure, Member, State, name_of

ATTEMPTS = 3
"""Number of returns because of one step. After as many, the run ends."""


def rolled_back(state: State, failure: Failure | None, there: Iterable[Member]) -> State:
    """Return ``state`` with the rollback that ``failure`` demands, if it demands one.

    The last return excludes the node, if enough other nodes are ``there``.
    """
    if failure is None or failure.rollback is None:
        return state
    last, demand = state.rollback, failure.rollback
    repeats = last is not None and last.failed_step == demand.failed_step
    number = last.number + 1 if last is not None and repeats else 1
    rollback = Rollback(failure.round, demand.step, demand.failed_step, number)
    drained = {*state.drained}
    name, nodes = name_of(failure.node), state.settings.nodes
    if number == ATTEMPTS and nodes.most_of(m.topology for m in there if m.name != name) >= nodes.min:
        drained.add(name)
    return replace(state, rollback=rollback, drained=tuple(sorted(drained)))


def reason_to_end(state: State) -> str | None:
    """Return why no further return can help; None if one can."""
    rollback = state.rollback
    if rollback is None or rollback.number <= ATTEMPTS or not any(failure.rollback for failure in state.failures):
        return None
    first = next(failure for failure in state.failures if failure.rollback)
    return (
        f"rank {first.rank} failed on {name_of(first.node)}: {first.message}; the state is poisoned after "
        f"{rollback.failed_step} steps, also after {ATTEMPTS} returns to an older one: a restart cannot help"
    )
