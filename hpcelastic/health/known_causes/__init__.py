"""The known causes of failures, with their messages and remedies. Pure.

Of the causes that match the same text, the first one applies.
"""

import re

from hpcelastic.health.known_causes import (
    clusters,
    communication,
    containers,
    data,
    fabrics,
    filesystem,
    general,
    gpu,
    host,
    nccl,
    program,
    scheduler,
    services,
    system,
)
from hpcelastic.health.known_causes.cause import Blame, Certainty, KnownCause, Weight

CAUSES = (
    *gpu.CAUSES,
    *host.CAUSES,
    *filesystem.CAUSES,
    *services.CAUSES,
    *program.CAUSES,
    *scheduler.CAUSES,
    *communication.CAUSES,
    *nccl.CAUSES,
    *fabrics.CAUSES,
    *clusters.CAUSES,
    *containers.CAUSES,
    *system.CAUSES,
    *data.CAUSES,
    *general.CAUSES,
)
"""All known causes, in the order in which they are tried."""

_ECHOES = tuple(cause for cause in CAUSES if cause.certainty is Certainty.ECHO)
_DETAILS = tuple(
    sorted(
        (cause for cause in CAUSES if cause.weight is Weight.DETAIL),
        key=lambda cause: cause.certainty is Certainty.ECHO,
    )
)
"""An echo tells less than any other detail."""

_VAGUE = tuple(cause for cause in CAUSES if cause.weight is Weight.VAGUE)
_USUAL = tuple(cause for cause in CAUSES if cause.weight is Weight.USUAL and cause.certainty is not Certainty.ECHO)

_END = re.compile(r"(?:exit status \d+|killed by SIG(?!KILL)\w+)")
"""A message that only tells how a process has ended, which may be an echo. SIGKILL comes from outside."""

__all__ = ["CAUSES", "Blame", "Certainty", "KnownCause", "explain", "is_echo"]


def explain(message: str, traceback: str = "") -> KnownCause | None:
    """Return the cause that the message of a failure indicates, or else its traceback; None if it is unknown.

    ``traceback`` may be the end of a log, which has other messages as well. A message without its middle (``…``) is
    read there.

    Examples:
        >>> cause = explain("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
        >>> cause.id, cause.blame.value
        ('cuda-out-of-memory', 'program')
    """
    message = _whole(message, traceback)
    vague = _END.match(message) is not None or _first(_VAGUE, message) is not None
    return (
        _first(_DETAILS, message)
        or _first(_DETAILS, traceback)
        or _first(_USUAL, message)
        or _first(_ECHOES, message)
        or _first(_USUAL, traceback)
        or (_first(_ECHOES, traceback) if vague else None)
        or _first(_VAGUE, message)
        or (_first(_VAGUE, traceback) if vague else None)
    )


def is_echo(message: str) -> bool:
    """Return whether a message is one that ranks have when another rank fails.

    Examples:
        >>> is_echo("RuntimeError: Connection closed by peer [10.0.0.2]:4711")
        True
        >>> is_echo("ValueError: bad label")
        False
    """
    return _first(_ECHOES, message) is not None


def _whole(message: str, traceback: str) -> str:
    """Return a message that was shortened as it is in the traceback."""
    head, _, tail = message.partition("…")
    if not tail:
        return message
    return next((line for line in traceback.splitlines() if head in line and line.endswith(tail)), message)


def _first(causes: tuple[KnownCause, ...], text: str) -> KnownCause | None:
    lower = text.lower()
    return next((cause for cause in causes if cause.matches(text, lower)), None) if text else None
