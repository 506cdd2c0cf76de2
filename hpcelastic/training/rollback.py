"""The return of a training to an older state, and the states from which it must not continue any more."""

import json
import os
from collections.abc import Iterable
from typing import NoReturn

from hpcelastic.errors import PoisonedState
from hpcelastic.ipc.marks import MarkKind
from hpcelastic.protocol.codec import decode
from hpcelastic.protocol.findings import Rollback

from .control_page import mark
from .recovery import Held
from .retention import CheckpointName, Retention

VARIABLE = "HPCELASTIC_ROLLBACK"
"""The environment variable in which the agent passes the newest return to an older state."""


def current_rollback() -> Rollback | None:
    """Return the newest return of this run to an older state; None if there was none."""
    text = os.environ.get(VARIABLE)
    return decode(Rollback, json.loads(text)) if text else None


def permitted_names(names: Iterable[CheckpointName]) -> list[CheckpointName]:
    """Return the checkpoints from which training may continue, in the same order."""
    rollback = current_rollback()
    return [name for name in names if rollback is None or not rollback.excludes(name.round, name.step)]


def sparing(retention: Retention) -> Retention:
    """Return the rule for the checkpoints that stay, which spares those that are poisoned."""
    rollback = current_rollback()
    return retention if rollback is None else retention.sparing(rollback.round, rollback.step)


def permitted_state(held: Held | None) -> Held | None:
    """Return a state in memory if training may continue from it, otherwise None.

    After a return, no state of that round or an earlier one may: one on disk with as many steps is preferred.
    """
    rollback = current_rollback()
    return held if held is not None and (rollback is None or held.round > rollback.round) else None


def demand_rollback(problem: str, step: int, names: Iterable[CheckpointName]) -> NoReturn:
    """Raise `PoisonedState`, and let training return to an older state. ``names`` are the checkpoints, newest first.

    ``step`` is the number of complete steps at which ``problem`` was found.
    """
    steps = [name.step for name in names if name.step <= step]
    target, last = next(iter(steps), None), current_rollback()
    if last is not None and last.failed_step == step:  # that checkpoint did not help, so the one before it may
        target = next((each for each in steps if each < last.step), last.step)
    consequence = "there is no checkpoint to return to"
    if target is not None:
        mark(MarkKind.POISONED, step)
        mark(MarkKind.ROLLBACK, target)
        consequence = f"training returns to the checkpoint of step {target}"
    raise PoisonedState(f"{problem} after {step} step{'s' * (step != 1)}; {consequence}")
