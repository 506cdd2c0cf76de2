"""Which failures of workers the machine is to blame for, by what they say. Pure.

Sources: NVIDIA's "XID Errors" and the messages of cudaGetErrorString. An illegal memory access or an assertion is not
among them: those are mistakes of programs.
"""

import re
import signal

from hpcelastic.health.incidents import Trouble

_TABLE = (
    (r"uncorrectable ECC error|cudaErrorECCUncorrectable", Trouble.HARDWARE),
    (r"uncorrectable NVLink error", Trouble.HARDWARE),
    (r"GPU (is lost|has fallen off the bus)", Trouble.HARDWARE),
    (r"\bXid\b.*\b(48|64|74|79|94|95|119|120)\b", Trouble.HARDWARE),
    (r"CUDA(-capable device| driver).*(busy or unavailable|initialization failed)", Trouble.SUSPECT),
    (r"no CUDA-capable device is detected|No CUDA GPUs are available|system not yet initialized", Trouble.SUSPECT),
    (r"CUDA error: (unknown error|hardware stack error|unspecified launch failure)", Trouble.SUSPECT),
    (r"\bBus error\b|\bSIGBUS\b", Trouble.SUSPECT),
    (r"Input/output error|Structure needs cleaning", Trouble.SUSPECT),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), cause) for pattern, cause in _TABLE)


def machines_fault(exit_code: int, message: str, traceback: str) -> Trouble | None:
    """What a worker's failure says of its machine; None where it says nothing.

    ``exit_code`` is minus the signal's number where a signal ended it.
    """
    text = f"{message}\n{traceback}"
    found = next((cause for pattern, cause in _COMPILED if pattern.search(text)), None)
    return found or (Trouble.SUSPECT if exit_code == -signal.SIGBUS else None)
