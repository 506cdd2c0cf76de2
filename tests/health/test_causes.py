"""Failures of workers that are caused by the machine."""

import signal

import pytest

from hpcelastic.health.causes import classify_failure
from hpcelastic.health.incidents import IncidentKind

FAILURES = {
    "ECC": (1, "RuntimeError: CUDA error: uncorrectable ECC error encountered", "", IncidentKind.HARDWARE),
    "in the traceback only": (1, "exit status 1", "…\ncudaErrorECCUncorrectable\n…", IncidentKind.HARDWARE),
    "Xid": (1, "ncclSystemError: NVRM: Xid (PCI:0000:43:00): 79", "", IncidentKind.HARDWARE),
    "Xid of a program": (1, "NVRM: Xid (PCI:0000:43:00): 31", "", None),
    "driver": (
        1,
        "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu",
        "",
        IncidentKind.SUSPECT,
    ),
    "no GPU": (1, "RuntimeError: No CUDA GPUs are available", "", IncidentKind.SUSPECT),
    "busy": (1, "CUDA error: all CUDA-capable devices are busy or unavailable", "", IncidentKind.SUSPECT),
    "unknown": (1, "RuntimeError: CUDA error: unknown error", "", IncidentKind.SUSPECT),
    "bus error": (-signal.SIGBUS, "killed by SIGBUS", "", IncidentKind.SUSPECT),
    "bus error of a loader": (1, "DataLoader worker (pid 7) is killed by signal: Bus error.", "", IncidentKind.SUSPECT),
    "disk": (1, "OSError: [Errno 5] Input/output error: '/tmp/x'", "", IncidentKind.SUSPECT),
    "illegal access": (1, "RuntimeError: CUDA error: an illegal memory access was encountered", "", None),
    "out of memory": (1, "torch.OutOfMemoryError: CUDA out of memory", "", None),
    "a bug": (1, "ZeroDivisionError: division by zero", "", None),
    "killed": (-signal.SIGKILL, "killed by SIGKILL", "", None),
}


@pytest.mark.parametrize(("code", "message", "traceback", "expected"), FAILURES.values(), ids=FAILURES)
def test_the_cause_of_a_failure(code: int, message: str, traceback: str, expected: IncidentKind | None) -> None:
    assert classify_failure(code, message, traceback) is expected
