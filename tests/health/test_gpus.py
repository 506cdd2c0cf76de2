"""A node's GPUs according to the driver, the device files and the kernel's log."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.health import gpus
from hpcelastic.health.checks import local_checks, run_all
from hpcelastic.health.gpus import check_gpus, given_gpus, hardware_xids
from hpcelastic.health.settings import HealthSettings
from tests.health.fake_gpus import ECC, SOUND, amd_smi, nvml, with_gpu

LIMIT = 20.0


def found(environ: dict[str, str], timeout: float = LIMIT) -> list[str]:
    return [finding.seen for finding in check_gpus(environ, timeout)]


REPORTED = {
    "sound": (SOUND, []),
    "without ECC": (with_gpu(0, ecc=None, rows=None), []),
    "ECC errors": (ECC, ["GPU 1 has 3 uncorrected ECC errors"]),
    "rows not remapped": (with_gpu(0, rows=(0, 1, 0, 1)), ["GPU 0 could not remap faulty rows of its memory"]),
    "lost": (with_gpu(1, error="GpuIsLost"), ["GPU 1 does not answer: the GPU: GpuIsLost"]),
    "one is missing": (SOUND[:1], ["1 of 2 answer (assigned: 0,1)"]),
    "none": ((), ["0 of 2 answer (assigned: 0,1)"]),
    "more than were given": ([*SOUND, {**ECC[1], "uuid": "GPU-1a"}], []),
    "one of another job": ([*with_gpu(0, error="NoPermission"), ECC[1]], ["GPU 1 has 3 uncorrected ECC errors"]),
}


@pytest.mark.parametrize(("reported", "expected"), REPORTED.values(), ids=REPORTED)
def test_what_the_driver_reports(reported: list[dict[str, Any]], expected: list[str], tmp_path: Path) -> None:
    assert found(nvml(tmp_path, reported)) == expected


def test_gpus_that_are_given_by_uuid_are_found(tmp_path: Path) -> None:
    environ = nvml(tmp_path, ECC)
    assert found({**environ, "CUDA_VISIBLE_DEVICES": "GPU-0f2e8d7c"}) == ["GPU 1 has 3 uncorrected ECC errors"]
    assert found({**environ, "CUDA_VISIBLE_DEVICES": "GPU-6a3c9f1e"}) == []


def test_a_driver_that_hangs_is_bad(tmp_path: Path) -> None:
    hangs = "def nvmlInit(): time.sleep(60)"
    assert found(nvml(tmp_path, code=hangs), 0.5) == ["the driver (NVML) has not answered within 0.5 s"]


def test_a_query_that_cannot_be_killed_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal has no effect on a process that hangs in the driver. The node check names the driver nevertheless."""
    killed: list[subprocess.Popen[str]] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda self: killed.append(self))
    environ = nvml(tmp_path, code="def nvmlInit(): time.sleep(10)")
    settings = HealthSettings(timeout=0.5, disk="0", shared_memory="0")
    findings = run_all(local_checks(environ, settings), settings.timeout + 1.0)
    assert [finding.seen for finding in findings] == ["the driver (NVML) has not answered within 0.5 s"]
    (process,) = killed
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()


FAILING = {
    "it reports an error": ("def nvmlInit(): raise NVMLError('Unknown Error')", "the driver (NVML): Unknown Error"),
    "its library crashes": (
        "def nvmlInit(): os.abort()",
        "the driver (NVML): its library has ended the query with signal 6",
    ),
}


@pytest.mark.parametrize(("code", "expected"), FAILING.values(), ids=FAILING)
def test_a_driver_that_fails_is_bad(code: str, expected: str, tmp_path: Path) -> None:
    assert found(nvml(tmp_path, code=code)) == [expected]


def test_a_fault_of_the_query_itself_does_not_blame_the_node(tmp_path: Path) -> None:
    with pytest.raises(ChildProcessError, match="NameError: name 'nothing' is not defined"):
        check_gpus(nvml(tmp_path, code="def nvmlInit(): nothing"), LIMIT)


def test_without_gpus_nothing_is_queried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = nvml(tmp_path, code="os.abort()")
    assert found({**environ, "CUDA_VISIBLE_DEVICES": ""}) == []
    del environ["CUDA_VISIBLE_DEVICES"]
    monkeypatch.setattr(gpus, "device_files", list)
    assert found(environ) == []


def test_without_a_library_of_the_driver_only_devices_are_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = [tmp_path / "nvidia0", tmp_path / "nvidia1"]
    monkeypatch.setattr(gpus, "device_files", lambda: devices)
    environ = nvml(tmp_path, code="def nvmlInit(): raise NVMLError_LibraryNotFound")
    devices[0].touch()
    assert found(environ) == [f"{devices[1]}: No such file or directory"]
    devices[1].touch()
    assert found(environ) == []


REPORTED_BY_AMD = {
    "sound": (SOUND, "", []),
    "without ECC": (with_gpu(0, error=2), "", []),
    "ECC errors": (ECC, "", ["GPU 1 has 3 uncorrected ECC errors"]),
    "no answer": (
        with_gpu(0, error=13),
        "",
        ["GPU 0 does not answer: Error code: 13 | AMDSMI_STATUS_IO - I/O Error"],
    ),
    "one is missing": (SOUND[:1], "", ["1 of 2 answer (assigned: 0,1)"]),
    "the driver fails": (
        SOUND,
        "def amdsmi_init(): raise AmdSmiLibraryException(13)",
        ["the driver (AMD SMI): Error code: 13 | AMDSMI_STATUS_IO - I/O Error"],
    ),
    "no library": (SOUND, "raise KeyError('libamd_smi.so')", []),
}


@pytest.mark.parametrize(("reported", "code", "expected"), REPORTED_BY_AMD.values(), ids=REPORTED_BY_AMD)
def test_what_the_driver_of_amd_reports(
    reported: list[dict[str, Any]],
    code: str,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpus, "AMD_DEVICE", tmp_path)
    assert found(amd_smi(tmp_path, reported, code)) == expected


def test_a_number_of_a_gpu_is_no_beginning_of_a_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "AMD_DEVICE", tmp_path)
    environ = amd_smi(tmp_path, with_gpu(0, uuid="1aff74a1-0000-1000-80a8", ecc=3))
    assert found({**environ, "ROCR_VISIBLE_DEVICES": "1"}) == []
    assert found({**environ, "ROCR_VISIBLE_DEVICES": "0"}) == ["GPU 0 has 3 uncorrected ECC errors"]


GIVEN = {
    "two": ("0,1", ["0", "1"]),
    "entries after an invalid one do not count": ("0,-1,1", ["0"]),
    "none": ("", []),
    "SLURM's none": ("NoDevFiles", []),
}


@pytest.mark.parametrize(("visible", "expected"), GIVEN.values(), ids=GIVEN)
def test_the_given_gpus(visible: str, expected: list[str]) -> None:
    assert given_gpus({"CUDA_VISIBLE_DEVICES": visible}) == expected


NOW = 10_000.0
RECORDS = {
    "fell off the bus": (
        "4,812,9000000000,-;NVRM: Xid (PCI:0000:43:00): 79, pid=1, GPU has fallen off",
        [("43:00", 79)],
    ),
    "with function": ("4,812,9000000000,-;NVRM: Xid (PCI:0000:43:00.0): 48, pid=1", [("43:00", 48)]),
    "a program's fault": ("4,812,9000000000,-;NVRM: Xid (PCI:0000:43:00): 31, pid=9, MMU Fault", []),
    "long ago": ("4,812,100000000,-;NVRM: Xid (PCI:0000:43:00): 79, pid=1", []),
    "something else": ("6,1,0,-;Linux version 6.1.0", []),
    "no record": ("", []),
}


@pytest.mark.parametrize(("record", "expected"), RECORDS.values(), ids=RECORDS)
def test_xids_in_the_kernels_log(record: str, expected: list[tuple[str, int]]) -> None:
    assert list(hardware_xids([record], NOW)) == expected


def test_an_xid_of_a_given_gpu_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = gpus.time.clock_gettime(gpus.time.CLOCK_MONOTONIC)
    record = f"4,812,{int(now * 1e6)},-;NVRM: Xid (PCI:0000:43:00): 79, pid=1"
    monkeypatch.setattr(gpus, "kernel_log", lambda: [record, record])
    environ = nvml(tmp_path)
    assert found(environ) == ["GPU 1 has reported Xid 79 within the last hour"]
    assert found({**environ, "CUDA_VISIBLE_DEVICES": "0"}) == []
