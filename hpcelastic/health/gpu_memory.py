"""Waits until the GPUs of this node have freed the memory of processes that have ended, by the driver's library (NVML).

The driver frees it after the end of a process, which takes seconds if it holds much memory. A new worker that starts
before would have too little memory. Source: NVIDIA's "NVML API Reference".
"""

import contextlib
import importlib
import time
from collections.abc import Collection
from functools import partial
from typing import Any

from hpcelastic.errors import StoreError
from hpcelastic.health.gpus import device_files
from hpcelastic.storage.bounded import bounded

_TIMEOUT = 10.0
"""Seconds in which the GPUs should free the memory."""

_POLL_INTERVAL = 0.05


def await_freed_memory(pids: Collection[int], timeout: float = _TIMEOUT) -> dict[int, int]:
    """Wait until no GPU holds memory of the processes ``pids``, at most ``timeout`` seconds.

    Return the bytes that GPUs still hold, by process id. The result is empty without GPUs of NVIDIA, if the driver does
    not answer, and in a container that does not share the process ids of its machine.
    """
    if not pids or not device_files():
        return {}
    held: dict[int, int] = {}
    with contextlib.suppress(Exception):  # an error of the driver must not end the agent; workers will report it
        nvml = importlib.import_module("pynvml")
        action = partial(_await, nvml, {*pids}, time.monotonic() + timeout, held)
        with contextlib.suppress(StoreError):
            bounded(action, timeout + 1.0, "the memory of the GPUs")
    return held


def _await(nvml: Any, pids: set[int], deadline: float, held: dict[int, int]) -> None:
    nvml.nvmlInit()
    try:
        while True:
            found = _held(nvml, pids)
            if not found or time.monotonic() >= deadline:
                held.update(found)
                return
            time.sleep(_POLL_INTERVAL)
    finally:
        nvml.nvmlShutdown()


def _held(nvml: Any, pids: set[int]) -> dict[int, int]:
    """Return the bytes of memory that GPUs hold for each of the processes ``pids`` that still has some."""
    held: dict[int, int] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError):  # such as a GPU of another job
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(index)):
                if process.pid in pids:
                    held[process.pid] = held.get(process.pid, 0) + (process.usedGpuMemory or 0)
    return held
