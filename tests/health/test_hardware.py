"""The hardware in flight: GPUs by a simulated library of the driver, InfiniBand ports by files, and the clock."""

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from hpcelastic.health import nvidia
from hpcelastic.health.amd import AmdGpus
from hpcelastic.health.clock import ClockSteps
from hpcelastic.health.hardware import HardwareSeverity, Source
from hpcelastic.health.infiniband import InfiniBandPorts
from hpcelastic.health.nvidia import NvidiaGpus

NOTE, AT_STEP, AT_ONCE = HardwareSeverity.NOTE, HardwareSeverity.LEAVE_AT_STEP, HardwareSeverity.LEAVE


def found(source: Source) -> list[tuple[str, HardwareSeverity]]:
    return [(finding.seen, finding.severity) for finding in source.look()]


class Nvml:
    """The functions of NVML that are used, for GPUs that the test changes. Names and numbers are those of NVML."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
    nvmlEventTypeXidCriticalError = 8
    nvmlClocksEventReasonHwSlowdown = 8
    nvmlClocksEventReasonHwThermalSlowdown = 64
    nvmlClocksEventReasonHwPowerBrakeSlowdown = 128

    class NVMLError_Timeout(Exception): ...  # names of NVML

    class NVMLError_GpuIsLost(Exception): ...

    class NVMLError_NoPermission(Exception): ...

    class NVMLError_NotSupported(Exception): ...

    class NVMLError_FunctionNotFound(Exception): ...

    def __init__(self, count: int = 2) -> None:
        self.gpus = [
            SimpleNamespace(index=i, uuid=f"GPU-{i}{i}ab", ecc=0, rows=(0, 0, 0, 0), reasons=0, lost=False, ours=True)
            for i in range(count)
        ]
        self.events: list[Any] = []
        self.registered: list[str] = []

    def xid(self, index: int, number: int) -> None:
        self.events.append(SimpleNamespace(device=self.gpus[index], eventData=number))

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        if not self.gpus[index].ours:
            raise self.NVMLError_NoPermission
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: Any) -> str:
        return str(self._value(gpu, gpu.uuid))

    def nvmlDeviceGetIndex(self, gpu: Any) -> int:
        return int(gpu.index)

    def nvmlEventSetCreate(self) -> Any:
        return "events"

    def nvmlDeviceRegisterEvents(self, gpu: Any, kinds: int, events: Any) -> None:
        assert (kinds, events) == (8, "events")
        self.registered.append(gpu.uuid)

    def nvmlEventSetWait_v2(self, events: Any, milliseconds: int) -> Any:
        assert (events, milliseconds) == ("events", 0)
        if not self.events:
            raise self.NVMLError_Timeout
        return self.events.pop(0)

    def nvmlDeviceGetTotalEccErrors(self, gpu: Any, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0)
        return int(self._value(gpu, gpu.ecc))

    def nvmlDeviceGetRemappedRows(self, gpu: Any) -> Any:
        return self._value(gpu, gpu.rows)

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: Any) -> int:
        return int(self._value(gpu, gpu.reasons))

    def _value(self, gpu: Any, value: Any) -> Any:
        if gpu.lost:
            raise self.NVMLError_GpuIsLost
        if value is None:
            raise self.NVMLError_NotSupported
        return value


@pytest.fixture
def nvml() -> Nvml:
    return Nvml()


def gpus(nvml: Nvml, **environ: str) -> NvidiaGpus:
    return NvidiaGpus(environ, nvml)


def test_a_machine_without_a_driver_has_no_gpus_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    class LibraryNotFoundError(Exception): ...

    def fails() -> None:
        raise LibraryNotFoundError

    binding = SimpleNamespace(nvmlInit=fails, NVMLError_LibraryNotFound=LibraryNotFoundError)
    monkeypatch.setitem(sys.modules, "pynvml", binding)
    monkeypatch.setattr(nvidia, "device_files", list)
    assert found(nvidia.nvidia_gpus({})) == []
    monkeypatch.setattr(nvidia, "device_files", lambda: [Path("/dev/nvidia0")])
    with pytest.raises(LibraryNotFoundError):
        nvidia.nvidia_gpus({})


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (79, [("GPU 1 has reported Xid 79: it has fallen off the bus", AT_ONCE)]),
        (48, [("GPU 1 has reported Xid 48: uncorrectable ECC error", AT_ONCE)]),
        (94, [("GPU 1 has reported Xid 94: contained ECC error", AT_STEP)]),
        (31, []),
        (13, []),
    ],
)
def test_xids_that_programs_do_not_cause(nvml: Nvml, number: int, expected: list[tuple[str, HardwareSeverity]]) -> None:
    watched = gpus(nvml)
    nvml.xid(1, number)
    assert found(watched) == expected
    assert found(watched) == [], "each is found once"


def test_errors_from_the_time_before_do_not_count(nvml: Nvml) -> None:
    nvml.gpus[0].ecc, nvml.gpus[1].rows = 7, (0, 1, 0, 1)
    watched = gpus(nvml)
    assert found(watched) == []
    nvml.gpus[0].ecc = 8
    assert found(watched) == [("GPU 0 has 1 new uncorrected ECC error", AT_STEP)]
    nvml.gpus[0].rows = (0, 2, 0, 1)
    assert found(watched) == [("GPU 0 could not remap a faulty row of its memory", AT_STEP)]
    assert found(watched) == []


def test_a_gpu_that_is_slowed_down_for_long(nvml: Nvml) -> None:
    watched = gpus(nvml)
    nvml.gpus[0].reasons = 64
    assert [found(watched) for _ in range(3)] == [[]] * 3
    assert found(watched) == [("GPU 0 is slowed down: it is too hot", NOTE)]
    assert found(watched) == [], "as long as that lasts"
    nvml.gpus[0].reasons = 4  # the power limit that the administrator has set
    assert [found(watched) for _ in range(5)] == [[]] * 5
    nvml.gpus[0].reasons = 128
    assert [found(watched) for _ in range(4)][3] == [("GPU 0 is slowed down: the power supply demands it", NOTE)]


def test_a_lost_gpu_is_found_once_and_the_others_are_watched(nvml: Nvml) -> None:
    watched = gpus(nvml)
    nvml.gpus[0].lost = True
    nvml.xid(0, 79)
    assert found(watched) == [("GPU 0 does not answer any more", AT_ONCE)]
    nvml.gpus[1].ecc = 2
    assert found(watched) == [("GPU 1 has 2 new uncorrected ECC errors", AT_STEP)]


def test_a_gpu_without_ecc_is_well(nvml: Nvml) -> None:
    for gpu in nvml.gpus:
        gpu.ecc = gpu.rows = gpu.reasons = None
    watched = gpus(nvml)
    assert found(watched) == []


@pytest.mark.parametrize(
    ("visible", "registered"),
    [
        ("1", ["GPU-11ab"]),
        ("GPU-0", ["GPU-00ab"]),
        ("0,1", ["GPU-00ab", "GPU-11ab"]),
        ("MIG-5", ["GPU-00ab", "GPU-11ab"]),
    ],
)
def test_only_the_assigned_gpus_are_watched(nvml: Nvml, visible: str, registered: list[str]) -> None:
    watched = gpus(nvml, CUDA_VISIBLE_DEVICES=visible)
    assert nvml.registered == registered
    for index, gpu in enumerate(nvml.gpus):
        nvml.xid(index, 79)
        assert len(found(watched)) == (gpu.uuid in registered)


def test_a_gpu_of_another_job_is_not_watched(nvml: Nvml) -> None:
    nvml.gpus[0].ours = False
    assert found(gpus(nvml)) == []
    assert nvml.registered == ["GPU-11ab"]


class AmdSmi:
    """The functions of AMD SMI that are used. ``ecc`` is the number of errors of each GPU, or a status code as text."""

    class AmdSmiException(Exception): ...

    class AmdSmiLibraryException(AmdSmiException):
        def get_error_code(self) -> int:
            return int(self.args[0])

    def __init__(self) -> None:
        self.ecc: list[int | str] = [0, 4]

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [*range(len(self.ecc))]

    def amdsmi_get_gpu_total_ecc_count(self, gpu: int) -> dict[str, int]:
        count = self.ecc[gpu]
        if isinstance(count, str):
            raise self.AmdSmiLibraryException(count)
        return {"uncorrectable_count": count}


def test_new_errors_of_gpus_of_amd() -> None:
    amdsmi = AmdSmi()
    watched, one = AmdGpus({}, amdsmi), AmdGpus({"ROCR_VISIBLE_DEVICES": "0"}, amdsmi)
    assert found(watched) == []
    amdsmi.ecc[1] = 5
    assert found(watched) == [("GPU 1 has 1 new uncorrected ECC error", AT_STEP)]
    assert found(watched) == found(one) == []


def test_a_gpu_of_amd_that_does_not_answer_for_long_is_lost() -> None:
    amdsmi = AmdSmi()
    watched = AmdGpus({"ROCR_VISIBLE_DEVICES": "GPU-52a1"}, amdsmi)
    for count, expected in (("13", []), ("13", []), (0, []), ("13", []), ("13", [])):
        amdsmi.ecc[0] = count
        assert found(watched) == expected
    assert found(watched) == [("GPU 0 does not answer any more: 13", AT_ONCE)]
    amdsmi.ecc[1] = 6
    assert found(watched) == [("GPU 1 has 2 new uncorrected ECC errors", AT_STEP)]


class Port:
    """The files of an InfiniBand port."""

    def __init__(self, root: Path, name: str = "mlx5_0", state: str = "4: ACTIVE") -> None:
        self.directory = root / name / "ports" / "1"
        (self.directory / "counters").mkdir(parents=True)
        self.set_state(state)
        for counter in ("link_downed", "link_error_recovery", "port_rcv_errors", "symbol_error"):
            self.count(counter, 5)

    def set_state(self, text: str) -> None:
        (self.directory / "state").write_text(f"{text}\n")

    def count(self, name: str, value: int) -> None:
        (self.directory / "counters" / name).write_text(f"{value}\n")


def test_a_port_that_goes_down_is_found_once_until_it_is_active_again(tmp_path: Path) -> None:
    port, other = Port(tmp_path), Port(tmp_path, "mlx5_1", "1: DOWN")
    watched = InfiniBandPorts(tmp_path)
    assert found(watched) == []
    for _ in range(2):
        port.set_state("1: DOWN")
        assert found(watched) == [("mlx5_0 port 1 is DOWN", AT_STEP)]
        assert found(watched) == []
        port.set_state("4: ACTIVE")
        assert found(watched) == []
    other.set_state("2: INIT")
    assert found(watched) == [], "it was never active"


SHORTAGES = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN]


@pytest.mark.parametrize("number", [*SHORTAGES, errno.ENODEV, errno.ENOENT, errno.EIO, errno.ENOLINK, errno.ENXIO])
def test_a_port_whose_state_cannot_be_read_is_gone_unless_this_node_lacks_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The kernel asks the adapter, which may be dead."""
    Port(tmp_path)
    watched = InfiniBandPorts(tmp_path)
    gone = [("mlx5_0 port 1 is gone", AT_STEP)]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", Mock(side_effect=OSError(number, os.strerror(number))))
        assert found(watched) == ([] if number in SHORTAGES else gone)
    assert found(watched) == []
    shutil.rmtree(tmp_path / "mlx5_0")
    assert found(watched) == gone


def test_error_counters_that_grow(tmp_path: Path) -> None:
    port = Port(tmp_path)
    watched = InfiniBandPorts(tmp_path)
    port.count("symbol_error", 900)
    assert found(watched) == []
    port.count("link_downed", 7)
    port.count("symbol_error", 2000)
    expected = "error counters of mlx5_0 port 1 have grown: link_downed by 2, symbol_error by 1100"
    assert found(watched) == [(expected, NOTE)]
    assert found(watched) == []


def test_a_counter_that_cannot_be_read_for_a_while_is_compared_with_its_last_value(tmp_path: Path) -> None:
    port = Port(tmp_path)
    watched = InfiniBandPorts(tmp_path)
    (port.directory / "counters" / "link_downed").unlink()
    assert found(watched) == []
    port.count("link_downed", 7)
    assert found(watched) == [("error counters of mlx5_0 port 1 have grown: link_downed by 2", NOTE)]


def test_a_machine_without_infiniband(tmp_path: Path) -> None:
    assert found(InfiniBandPorts(tmp_path / "missing")) == []


def test_steps_of_the_clock() -> None:
    times: Iterator[float] = iter([100.0, 115.3, 133.0, 100.0])
    steady = iter([0.0, 15.0, 30.0, 45.0])
    watched = ClockSteps(lambda: next(times), lambda: next(steady))
    assert found(watched) == []
    assert found(watched) == [("it was set forwards by 2.7 s", NOTE)]
    assert found(watched) == [("it was set backwards by 48.0 s", NOTE)]
