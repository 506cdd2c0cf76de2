"""A node's GPUs according to nvidia-smi, the device files and the kernel's log."""

from pathlib import Path

import pytest

from hpcelastic.health import gpus
from hpcelastic.health.gpus import check_gpus, given_gpus, hardware_xids
from tests.health.fake_gpus import ECC, SOUND, nvidia_smi

LIMIT = 20.0


def found(environ: dict[str, str], timeout: float = LIMIT) -> list[str]:
    return [finding.seen for finding in check_gpus(environ, timeout)]


SAID = {
    "sound": (SOUND, []),
    "without ECC": (SOUND.replace("0, No", "[N/A], [N/A]"), []),
    "ECC errors": (ECC, ["GPU 1 has 3 uncorrected ECC errors"]),
    "rows not remapped": (SOUND.replace("1B:00.0, 0, No", "1B:00.0, 0, Yes"), ["GPU 0 could not remap"]),
    "lost": (SOUND.replace("43:00.0, 0, No", "43:00.0, [GPU is lost], [N/A]"), ["GPU 1 does not answer"]),
    "one is missing": (SOUND.splitlines()[0] + "\n", ["1 of 2 answer (CUDA_VISIBLE_DEVICES=0,1)"]),
    "none": ("", ["0 of 2 answer"]),
    "more than were given": (SOUND + ECC.splitlines()[1].replace("1, GPU-0f", "2, GPU-1a") + "\n", []),
}


@pytest.mark.parametrize(("says", "expected"), SAID.values(), ids=SAID)
def test_the_output_of_nvidia_smi(says: str, expected: list[str], tmp_path: Path) -> None:
    seen = found(nvidia_smi(tmp_path, says))
    assert len(seen) == len(expected)
    assert all(text.startswith(words) for text, words in zip(seen, expected, strict=True)), seen


def test_gpus_that_are_given_by_uuid_are_found(tmp_path: Path) -> None:
    environ = nvidia_smi(tmp_path, ECC)
    assert found({**environ, "CUDA_VISIBLE_DEVICES": "GPU-0f2e8d7c"}) == ["GPU 1 has 3 uncorrected ECC errors"]
    assert found({**environ, "CUDA_VISIBLE_DEVICES": "GPU-6a3c9f1e"}) == []


def test_a_driver_that_hangs_is_bad(tmp_path: Path) -> None:
    assert found(nvidia_smi(tmp_path, "", "exec sleep 60"), 0.2) == ["nvidia-smi has not answered within 0.2 s"]


def test_a_driver_that_fails_is_bad(tmp_path: Path) -> None:
    script = "echo 'Unable to determine the device handle for GPU 0000:43:00.0: Unknown Error'; exit 255"
    (seen,) = found(nvidia_smi(tmp_path, "", script))
    assert seen.endswith("Unable to determine the device handle for GPU 0000:43:00.0: Unknown Error")


def test_an_old_driver_is_queried_for_fewer_fields(tmp_path: Path) -> None:
    refuse = "echo 'Field \"remapped_rows.failure\" is not a valid field to query.'; exit 2"
    script = f'case "$1" in *remapped*) {refuse};; esac'
    assert found(nvidia_smi(tmp_path, ECC.replace(", No", ""), script)) == ["GPU 1 has 3 uncorrected ECC errors"]


def test_without_gpus_nothing_is_queried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = nvidia_smi(tmp_path, "", "exit 1")
    assert found({**environ, "CUDA_VISIBLE_DEVICES": ""}) == []
    del environ["CUDA_VISIBLE_DEVICES"]
    monkeypatch.setattr(gpus, "device_files", list)
    assert found(environ) == []


def test_without_nvidia_smi_only_devices_are_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [tmp_path / "nvidia0", tmp_path / "nvidia1"]
    monkeypatch.setattr(gpus, "device_files", lambda: devices)
    environ = {"PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0,1"}
    devices[0].touch()
    assert found(environ) == [f"{devices[1]}: No such file or directory"]
    devices[1].touch()
    assert found(environ) == []


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
    environ = nvidia_smi(tmp_path, SOUND)
    assert found(environ) == ["GPU 1 has reported Xid 79 within the last hour"]
    assert found({**environ, "CUDA_VISIBLE_DEVICES": "0"}) == []
