"""The wait for the memory of workers that have ended, with a simulated library of the driver."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcelastic.health import gpu_memory
from hpcelastic.health.gpu_memory import await_freed_memory

GIB = 1 << 30


class Nvml:
    """Two GPUs, whose processes the test changes: the process id and the bytes of each."""

    class NVMLError(Exception): ...

    def __init__(self) -> None:
        self.processes: list[list[tuple[int, int | None]]] = [[], []]
        self.asked, self.initialised = 0, 0
        self.before_answer: Callable[[], object] = lambda: None

    def nvmlInit(self) -> None:
        self.initialised += 1

    def nvmlShutdown(self) -> None:
        self.initialised -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 2:
            raise self.NVMLError("assigned to another job")
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[Any]:
        self.asked += 1
        self.before_answer()
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.processes[gpu]]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    made = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.setattr(gpu_memory, "device_files", lambda: [Path("/dev/nvidia0")])
    return made


def test_memory_of_other_processes_does_not_count(nvml: Nvml) -> None:
    nvml.processes = [[(77, GIB)], [(78, None)]]
    assert await_freed_memory([5, 6], 20.0) == {}
    assert (nvml.asked, nvml.initialised) == (2, 0)


def test_the_wait_ends_once_the_memory_is_free(nvml: Nvml) -> None:
    nvml.processes = [[(5, GIB)], [(5, GIB), (77, GIB)]]

    def free() -> None:
        if nvml.asked == 7:
            nvml.processes = [[], [(77, GIB)]]

    nvml.before_answer = free
    assert await_freed_memory([5, 6], 20.0) == {}
    assert nvml.asked == 8


def test_what_is_not_freed_in_time_is_returned(nvml: Nvml) -> None:
    nvml.processes = [[(5, GIB)], [(5, 2 * GIB), (6, None)]]
    assert await_freed_memory([5, 6], 0.1) == {5: 3 * GIB, 6: 0}


def test_a_driver_that_hangs_or_fails_delays_no_round_for_ever(nvml: Nvml) -> None:
    nvml.before_answer = lambda: time.sleep(60)
    assert await_freed_memory([5], -0.9) == {}
    nvml.before_answer = lambda: 1 / 0
    assert await_freed_memory([5], 20.0) == {}


def test_without_gpus_or_processes_nothing_is_queried(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await_freed_memory([], 20.0) == {}
    monkeypatch.setattr(gpu_memory, "device_files", list)
    assert await_freed_memory([5], 20.0) == {}
    assert nvml.asked == 0
