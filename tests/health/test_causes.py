"""Which failures of workers are the machine's fault."""

import signal

import pytest

from hpcelastic.health.causes import machines_fault
from hpcelastic.health.incidents import Trouble

FAILURES = {
    "ECC": (1, "RuntimeError: CUDA error: uncorrectable ECC error encountered", "", Trouble.HARDWARE),
    "in the traceback only": (1, "exit status 1", "…\ncudaErrorECCUncorrectable\n…", Trouble.HARDWARE),
    "Xid": (1, "ncclSystemError: NVRM: Xid (PCI:0000:43:00): 79", "", Trouble.HARDWARE),
    "Xid of a program": (1, "NVRM: Xid (PCI:0000:43:00): 31", "", None),
    "driver": (
        1,
        "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu",
        "",
        Trouble.SUSPECT,
    ),
    "no GPU": (1, "RuntimeError: No CUDA GPUs are available", "", Trouble.SUSPECT),
    "busy": (1, "CUDA error: all CUDA-capable devices are busy or unavailable", "", Trouble.SUSPECT),
    "unknown": (1, "RuntimeError: CUDA error: unknown error", "", Trouble.SUSPECT),
    "bus error": (-signal.SIGBUS, "killed by SIGBUS", "", Trouble.SUSPECT),
    "bus error of a loader": (1, "DataLoader worker (pid 7) is killed by signal: Bus error.", "", Trouble.SUSPECT),
    "disk": (1, "OSError: [Errno 5] Input/output error: '/tmp/x'", "", Trouble.SUSPECT),
    "illegal access": (1, "RuntimeError: CUDA error: an illegal memory access was encountered", "", None),
    "out of memory": (1, "torch.OutOfMemoryError: CUDA out of memory", "", None),
    "a mistake": (1, "ZeroDivisionError: division by zero", "", None),
    "killed": (-signal.SIGKILL, "killed by SIGKILL", "", None),
}


@pytest.mark.parametrize(("code", "message", "traceback", "expected"), FAILURES.values(), ids=FAILURES)
def test_whose_fault(code: int, message: str, traceback: str, expected: Trouble | None) -> None:
    assert machines_fault(code, message, traceback) is expected
