"""The restart budget of a run: how a failure is charged, how the budget is refilled, and when a restart cannot help.

Pure. The budget is a token bucket with ``restarts.max`` tokens. A failure takes one. One returns in each
``restarts.refill_interval``, and for each ``restarts.refill_steps`` steps that were saved after the last failure.

A crash loop is the same error at the same place in the same step, several times in a row.
"""

import re
from dataclasses import replace

from hpcelastic.protocol.findings import Charge
from hpcelastic.protocol.rollback import reason_to_end
from hpcelastic.protocol.state import Failure, Phase, State, name_of


def refilled(state: State, failure: Failure | None, progress: int) -> State:
    """Return ``state`` with the budget as it is before the charge of ``failure``, the first of its round.

    ``progress`` is the highest step that workers have reported as saved; -1 if they have reported none.
    """
    settings, last = state.settings.restarts, state.charge
    if failure is None:
        return state
    now = failure.timestamp
    what = identity(failure)
    if last is None:
        return replace(state, charge=Charge(now, progress, what))
    passed = now - last.time
    by_time = int(passed // settings.refill_interval) if settings.refill_interval and passed > 0 else 0
    steps = max(0, progress - last.progress)
    by_steps = steps // settings.refill_steps if settings.refill_steps else 0
    units = min(state.restarts, by_time + by_steps)
    # The rest of an interval counts for the next failure, unless the budget is full. The clock of a node may be wrong.
    is_rest = by_time < state.restarts and passed >= 0
    since = last.time + by_time * settings.refill_interval if is_rest else now
    repeats = last.repeats + 1 if what and what == last.failure else 1
    charge = Charge(since, max(progress, last.progress), what, repeats)
    return replace(state, refilled=state.refilled + units, charge=charge)


def has_crash_loop(state: State) -> bool:
    """Return whether the run has failed because of a crash loop."""
    return state.phase is Phase.FAILED and (_is_crash_loop(state) or reason_to_end(state) is not None)


def _is_crash_loop(state: State) -> bool:
    """Return whether the last failures were the same so often that a restart cannot help."""
    limit = state.settings.restarts.identical
    return bool(limit) and state.charge is not None and state.charge.repeats >= limit


def reason_to_give_up(state: State) -> str | None:
    """Return why no round can follow: the budget is spent, or a restart cannot help. None if one can."""
    poisoned = reason_to_end(state)
    if poisoned is not None:
        return poisoned
    budget, first = state.settings.restarts.max, state.failures[0] if state.failures else None
    what = f"rank {first.rank} failed on {name_of(first.node)}: {first.message}" if first else "a worker failed"
    if state.charge is not None and _is_crash_loop(state) and first is not None:
        same = f"the same error in the same step, {state.charge.repeats} times in a row (restarts.identical)"
        return f"{what}; {same}: a restart cannot help"
    if state.restarts > budget:
        return f"{what} (restarts.max is {budget}, all spent)" if budget else f"{what} (restarts.max is 0)"
    return None


def identity(failure: Failure) -> str:
    """Return what a failure has in common with a repetition of it: the step, the place and the message.

    It is empty if these are unknown, or a new attempt may help: if a signal has ended the worker, if another rank or
    the operating system has caused the error, or if training returns to an older state.
    """
    places = _PLACE.findall(failure.traceback)
    if failure.step < 0 or not places or failure.exit_code < 0:
        return ""
    if failure.rollback or failure.collective or _OF_SYSTEM.search(failure.message):
        return ""
    return f"step {failure.step}, {':'.join(places[-1])}: {failure.message}"


_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_OF_SYSTEM = re.compile(r"\[Errno |gloo|NCCL|Connection closed by peer|StoreError|DistStoreError|DistNetworkError")
"""Errors of the operating system, of a collective, and of a store."""
