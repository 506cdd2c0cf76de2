"""The states from which a training must not continue after it has returned to an older one."""

import json
import os
from collections.abc import Iterable

from hpcelastic.protocol.codec import decode
from hpcelastic.protocol.findings import Rollback

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
