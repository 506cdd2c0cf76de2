"""Classification of worker failures by their messages: which of them indicate a fault of the machine. Pure.

Sources: NVIDIA's "XID Errors" and the messages of cudaGetErrorString. An illegal memory access or an assertion is not
included, because it is an error of the program.
"""

import re
import signal

from hpcelastic.health.incidents import IncidentKind

_PATTERNS = (
    (r"uncorrectable ECC error|cudaErrorECCUncorrectable", IncidentKind.HARDWARE),
    (r"uncorrectable NVLink error", IncidentKind.HARDWARE),
    (r"GPU (is lost|has fallen off the bus)", IncidentKind.HARDWARE),
    (r"\bXid\b.*\b(48|64|74|79|94|95|119|120)\b", IncidentKind.HARDWARE),
    (r"CUDA(-capable device| driver).*(busy or unavailable|initialization failed)", IncidentKind.SUSPECT),
    (r"no CUDA-capable device is detected|No CUDA GPUs are available|system not yet initialized", IncidentKind.SUSPECT),
    (r"CUDA error: (unknown error|hardware stack error|unspecified launch failure)", IncidentKind.SUSPECT),
    (r"\bBus error\b|\bSIGBUS\b", IncidentKind.SUSPECT),
    (r"Input/output error|Structure needs cleaning", IncidentKind.SUSPECT),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), cause) for pattern, cause in _PATTERNS)


def classify_failure(exit_code: int, message: str, traceback: str) -> IncidentKind | None:
    """Return the kind of incident that a worker's failure indicates; None if it indicates no fault of the machine.

    ``exit_code`` is the negative signal number if a signal ended the worker.
    """
    text = f"{message}\n{traceback}"
    found = next((cause for pattern, cause in _COMPILED if pattern.search(text)), None)
    return found or (IncidentKind.SUSPECT if exit_code == -signal.SIGBUS else None)
