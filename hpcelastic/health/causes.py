"""Classification of worker failures by their messages: which of them indicate a fault of the machine. Pure."""

import signal

from hpcelastic.health.incidents import IncidentKind
from hpcelastic.health.known_causes import CAUSES


def classify_failure(exit_code: int, message: str, traceback: str) -> IncidentKind | None:
    """Return the kind of incident that a worker's failure indicates; None if it indicates no fault of the machine.

    ``exit_code`` is the negative signal number if a signal ended the worker. A traceback may have several messages. One
    that indicates a fault of the machine counts.
    """
    text = f"{message}\n{traceback}"
    found = {cause.incident for cause in CAUSES if cause.incident and cause.matches(text)}
    if IncidentKind.HARDWARE in found:
        return IncidentKind.HARDWARE
    return IncidentKind.SUSPECT if found or exit_code == -signal.SIGBUS else None
