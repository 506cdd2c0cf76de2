"""Check that the GPUs assigned to a node are present and healthy, by the driver and the kernel's log.

Neither CUDA nor HIP is needed: the check queries the management library of the driver if there is one, opens the device
files of NVIDIA's GPUs if there are any, and reads the kernel's log if it may. Source: NVIDIA's "XID Errors".
"""

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.health.finding import CheckFinding
from hpcelastic.health.kernel_log import kernel_log

CHECK = "GPUs"

NVML, AMD_SMI = "NVML", "AMD SMI"
"""The management libraries of the drivers of NVIDIA and of AMD."""

_QUERIES = {NVML: "hpcelastic.health.nvidia_query", AMD_SMI: "hpcelastic.health.amd_query"}
"""The module that queries each library."""

AMD_DEVICE = Path("/dev/kfd")
"""The device file that all of AMD's GPUs for computation share."""

_HARDWARE = {48, 64, 74, 79, 94, 95, 119, 120}
"""Xids that programs do not cause: of the memory, NVLink, the bus, and the GPU's own processor."""

_RECORD = re.compile(r"\d+,\d+,(?P<stamp>\d+),[^;]*;.*NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<xid>\d+)")
"""A record of /dev/kmsg: priority, number, microseconds since boot, flags; text."""

_XID_MAX_AGE = 3600.0
"""Seconds for which an Xid in the kernel's log counts. The cause of an older one may have been fixed."""

_KILL_TIMEOUT = 0.2
"""Seconds for the end of a query that was killed. The checks end within one second of their time-out."""

_REMEDY = "drain the node, and have the GPU reset or replaced"


@dataclass(frozen=True)
class Gpu:
    """A GPU, as the driver describes it."""

    index: str
    uuid: str = ""
    bus: str = ""
    """Its PCI address, such as ``00000000:1B:00.0``."""

    uncorrected: int = 0
    """Number of uncorrected ECC errors since the driver was loaded."""

    remapping_failed: bool = False
    """Whether a faulty row of its memory could not be remapped."""

    error: str = ""
    """Why the driver does not describe it; empty if it does."""


def given_gpus(environ: Mapping[str, str], name: str = "CUDA_VISIBLE_DEVICES") -> list[str] | None:
    """Return the entries of a variable up to the first that is no GPU, as CUDA and ROCm do; None if it is unset."""
    visible = environ.get(name)
    if visible is None:
        return None
    entries = (entry.strip() for entry in visible.split(","))
    return list(itertools.takewhile(lambda entry: entry not in ("", "-1", "NoDevFiles"), entries))


def device_files(directory: Path = Path("/dev")) -> list[Path]:
    return sorted(directory.glob("nvidia[0-9]*"))


def check_gpus(environ: Mapping[str, str], timeout: float) -> list[CheckFinding]:
    """Return the problems of the GPUs assigned to this node; none if it has no GPUs. ``timeout`` is in seconds."""
    given, devices = given_gpus(environ), device_files()
    count = len(devices) if given is None else len(given)
    found: list[CheckFinding] = []
    if count:
        found += _check_device_files(devices, count)
        gpus, found_by_driver = _check_driver(NVML, environ, given, count, timeout)
        found += [*found_by_driver, *_check_kernel_log(gpus, given)]
    if AMD_DEVICE.exists():
        given = given_gpus(environ, "ROCR_VISIBLE_DEVICES")
        found += _check_driver(AMD_SMI, environ, given, len(given or ()), timeout)[1]
    return found


def _check_device_files(devices: Sequence[Path], count: int) -> Iterator[CheckFinding]:
    """Check that at least ``count`` devices can be opened. It is not known which of them SLURM has assigned."""
    errors = [f"{device}: {error}" for device in devices if (error := _open_error(device))]
    if len(devices) >= count > len(devices) - len(errors):
        yield CheckFinding(CHECK, ", ".join(errors), "check the driver and the permissions of the device")


def _open_error(device: Path) -> str:
    try:
        os.close(os.open(device, os.O_RDWR))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _check_driver(
    library: str, environ: Mapping[str, str], given: list[str] | None, count: int, timeout: float
) -> tuple[list[Gpu], list[CheckFinding]]:
    """Return the GPUs of this machine, and the problems of those that are assigned to this node."""
    try:
        gpus = _query(library, environ, timeout)
    except subprocess.TimeoutExpired:
        seen = f"the driver ({library}) has not answered within {timeout:g} s"
        return [], [
            CheckFinding(CHECK, seen, "the driver hangs: drain the node, and have it rebooted", of_machine=True)
        ]
    except GpuQueryRefused as refused:
        return [], [CheckFinding(CHECK, f"the driver ({library}): {refused}", _REMEDY)]
    return ([], []) if gpus is None else (gpus, [*check_gpu_states(gpus, given, count)])


class GpuQueryRefused(Exception):
    """The driver could not be queried; the message is the reason."""


def _query(library: str, environ: Mapping[str, str], timeout: float) -> list[Gpu] | None:
    """Return the GPUs that this node may access; None without the library.

    Raises GpuQueryRefused and TimeoutExpired, and ChildProcessError if the query itself has a fault.
    """
    command = (sys.executable, "-m", _QUERIES[library])
    process = subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that hangs in the driver does not end
            process.wait(_KILL_TIMEOUT)
        raise
    if process.returncode < 0:
        raise GpuQueryRefused(f"its library has ended the query with signal {-process.returncode}")
    if process.returncode > 0:
        raise ChildProcessError(f"{' '.join(command)}: {errors.strip().rpartition(chr(10))[2]}")
    answer = json.loads(output.splitlines()[-1])  # the binding of AMD prints errors to standard output
    if "error" in answer:
        raise GpuQueryRefused(answer["error"])
    return None if answer["gpus"] is None else [Gpu(**gpu) for gpu in answer["gpus"]]


def bus_addresses(environ: Mapping[str, str], timeout: float) -> list[str]:
    """Return the PCI addresses, in the kernel's format, of the GPUs assigned to this node, in their order.

    Raises GpuQueryRefused if there is no answer of the driver within ``timeout`` seconds.
    """
    try:
        gpus = _query(NVML, environ, timeout)
    except subprocess.TimeoutExpired as error:
        raise GpuQueryRefused(f"the driver ({NVML}) has not answered within {timeout:g} s") from error
    if gpus is None:
        raise GpuQueryRefused("NVIDIA's library NVML is not found; it is needed for the addresses of the GPUs")
    given = given_gpus(environ)
    assigned = gpus if given is None else [_find_gpu(gpus, entry) for entry in given]
    return [_kernel_address(gpu.bus) for gpu in assigned]


def _find_gpu(gpus: Sequence[Gpu], entry: str) -> Gpu:
    """Return the GPU that an entry of CUDA_VISIBLE_DEVICES names."""
    for gpu in gpus:
        if is_named(gpu.index, gpu.uuid, entry):
            return gpu
    raise GpuQueryRefused(f"CUDA_VISIBLE_DEVICES names {entry}, which the driver does not list as a GPU")


def is_named(index: str, uuid: str, entry: str) -> bool:
    """Return whether an entry of a variable names a GPU: by its number, or by the beginning of its UUID."""
    return index == entry or (not entry.isdigit() and uuid.startswith(entry))


def _kernel_address(bus: str) -> str:
    """Return ``0000:1b:00.0`` for NVML's ``00000000:1B:00.0``."""
    domain, _, rest = bus.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def check_gpu_states(gpus: Sequence[Gpu], given: Sequence[str] | None, count: int) -> Iterator[CheckFinding]:
    """Yield the problems of the assigned GPUs that the driver shows; ``count`` is the number of assigned GPUs."""
    if len(gpus) < count:
        seen = f"{len(gpus)} of {count} answer (assigned: {','.join(given)})" if given else ""
        yield CheckFinding(CHECK, seen or f"{len(gpus)} of {count} answer", _REMEDY)
    for gpu in _select_given(gpus, given):
        if gpu.error:
            yield _faulty(f"GPU {gpu.index} does not answer: {gpu.error}")
        elif gpu.uncorrected:
            yield _faulty(f"GPU {gpu.index} has {gpu.uncorrected} uncorrected ECC errors")
        elif gpu.remapping_failed:
            yield _faulty(f"GPU {gpu.index} could not remap faulty rows of its memory")


def _faulty(seen: str) -> CheckFinding:
    return CheckFinding(CHECK, seen, _REMEDY, of_machine=True)


def _select_given(gpus: Sequence[Gpu], given: Sequence[str] | None) -> list[Gpu]:
    """Return the assigned GPUs; all GPUs if the assigned ones are not known, as with MIG instances."""
    if given is None:
        return list(gpus)
    assigned = [gpu for gpu in gpus if any(is_named(gpu.index, gpu.uuid, entry) for entry in given)]
    return assigned if len(assigned) == len(given) else list(gpus)


def _check_kernel_log(gpus: Sequence[Gpu], given: Sequence[str] | None) -> Iterator[CheckFinding]:
    indices = {_slot(gpu.bus): gpu.index for gpu in _select_given(gpus, given)}
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    for slot, xid in dict.fromkeys(hardware_xids(kernel_log(), now)):
        if slot in indices:
            yield _faulty(f"GPU {indices[slot]} has reported Xid {xid} within the last hour")


def hardware_xids(records: Sequence[str], now: float) -> Iterator[tuple[str, int]]:
    """Yield the PCI slot and the Xid of each recent hardware error in the log; ``now`` is in seconds since boot."""
    for record in records:
        found = _RECORD.match(record)
        if found and int(found["xid"]) in _HARDWARE and now - int(found["stamp"]) / 1e6 < _XID_MAX_AGE:
            yield _slot(found["bus"]), int(found["xid"])


def _slot(bus: str) -> str:
    """Return ``BUS:DEVICE`` of a PCI address. NVML and the kernel write domain and function differently."""
    return ":".join(bus.lower().split(".")[0].split(":")[-2:])
