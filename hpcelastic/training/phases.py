"""Phases of a training in which it makes no steps, such as an evaluation."""

import contextlib
from collections.abc import Iterator

from hpcelastic.ipc.marks import MarkKind

from .control_page import mark

_LONGEST_LIMIT = 2**31
"""The longest limit in seconds. A mark has a whole number, and `time_left` may be infinite."""

_KINDS = {"compile": MarkKind.COMPILING, "evaluate": MarkKind.EVALUATING}


@contextlib.contextmanager
def phase(name: str, limit: float | None = None) -> Iterator[None]:
    """Announce that this process makes no steps for a while, so that this is not taken for a hang.

    Outside steps, a process of a run has the time limit ``hangs.phase`` of the job file, or ``limit`` seconds, until it
    shows some progress. ``name`` is for people: ``evaluate`` and ``compile`` are shown by `hpcelastic stacks`. A save
    of `Checkpoints`, and what happens before the first step, need no announcement. Does nothing outside hpcelastic.

    Examples:
        >>> with phase("evaluate", limit=600):
        ...     accuracy = sum([1, 0, 1]) / 3
    """
    if limit is not None and not limit > 0:
        raise ValueError(f"limit is {limit}; it must be a number of seconds, more than 0")
    seconds = 0 if limit is None else max(1, round(min(limit, _LONGEST_LIMIT)))
    with marked_phase(_KINDS.get(name, MarkKind.PHASE), seconds):
        yield


@contextlib.contextmanager
def marked_phase(kind: MarkKind, limit: int = 0) -> Iterator[None]:
    """Mark a phase of a ``kind``, with its limit in seconds; 0 for the default."""
    mark(kind, limit)
    try:
        yield
    finally:
        mark(MarkKind.PHASE_ENDED, 0)
