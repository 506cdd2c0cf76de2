"""The known causes of failures, with their messages and remedies. Pure.

The first cause whose pattern matches applies. Causes that name a fault come before those that are echoes of a failure
elsewhere.
"""

from hpcelastic.health.known_causes import communication, gpu, host, program
from hpcelastic.health.known_causes.cause import Blame, Certainty, KnownCause

_ALL = (*gpu.CAUSES, *host.CAUSES, *program.CAUSES, *communication.CAUSES)
CAUSES = tuple(sorted(_ALL, key=lambda cause: cause.certainty is Certainty.ECHO))
"""All known causes, in the order in which they are tried."""

__all__ = ["CAUSES", "Blame", "Certainty", "KnownCause", "explain", "is_echo"]


def explain(message: str, traceback: str = "") -> KnownCause | None:
    """Return the cause that the message of a failure indicates, or else its traceback; None if it is unknown.

    Examples:
        >>> cause = explain("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
        >>> cause.id, cause.blame.value
        ('cuda-out-of-memory', 'program')
    """
    texts = (message, traceback)
    return next((cause for text in texts if text for cause in CAUSES if cause.matches(text)), None)


def is_echo(message: str) -> bool:
    """Return whether a message is one that ranks have when another rank fails.

    Examples:
        >>> is_echo("RuntimeError: Connection closed by peer [10.0.0.2]:4711")
        True
        >>> is_echo("ValueError: bad label")
        False
    """
    return any(cause.matches(message) for cause in CAUSES if cause.certainty is Certainty.ECHO)
