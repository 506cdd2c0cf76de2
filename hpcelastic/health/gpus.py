"""Whether the GPUs that a node was given are there and sound, as far as the driver and the kernel's log tell.

Nothing here needs CUDA: ``nvidia-smi`` is asked where it is in PATH, device files are opened where there are any, the
kernel's log is read where that is allowed. Sources: nvidia-smi(1), NVIDIA's "XID Errors", the kernel's
Documentation/ABI/testing/dev-kmsg.
"""

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.health.finding import Finding

CHECK = "GPUs"

_FIELDS = ("index", "uuid", "pci.bus_id", "ecc.errors.uncorrected.volatile.total", "remapped_rows.failure")
_OLD_FIELDS = _FIELDS[:4]
"""What a driver knows that was made before the A100."""

_HARDWARE = {48, 64, 74, 79, 94, 95, 119, 120}
"""Xids that programs do not cause: memory, NVLink, the bus, the GPU's own processor."""

_RECORD = re.compile(r"\d+,\d+,(?P<stamp>\d+),[^;]*;.*NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<xid>\d+)")
"""A record of /dev/kmsg: priority, number, microseconds since boot, flags; text."""

_RECENT = 3600.0
"""Seconds for which an Xid in the kernel's log counts: what is older may have been put right."""

_REMEDY = "drain the node, and let the site's administrators reset or replace the GPU"


@dataclass(frozen=True)
class Gpu:
    """One line of nvidia-smi."""

    index: str
    uuid: str
    bus: str
    uncorrected: str = "[N/A]"
    """ECC errors that were not corrected, since the driver was loaded; ``[N/A]`` for a GPU without ECC."""

    remapping_failed: str = "[N/A]"


def given_gpus(environ: Mapping[str, str]) -> list[str] | None:
    """The entries of CUDA_VISIBLE_DEVICES, up to the first that is none, as CUDA reads it; None if it is not set."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    entries = (entry.strip() for entry in visible.split(","))
    return list(itertools.takewhile(lambda entry: entry not in ("", "-1", "NoDevFiles"), entries))


def device_files(directory: Path = Path("/dev")) -> list[Path]:
    return sorted(directory.glob("nvidia[0-9]*"))


def check_gpus(environ: Mapping[str, str], timeout: float) -> list[Finding]:
    """What is wrong with the GPUs that this node was given; nothing where there are none. ``timeout`` in seconds."""
    given, devices = given_gpus(environ), device_files()
    count = len(devices) if given is None else len(given)
    if count == 0:
        return []
    return [*_unopened(devices, count), *_asked(environ, given, count, timeout)]


def _unopened(devices: Sequence[Path], count: int) -> Iterator[Finding]:
    """Which devices SLURM shows us by number is not known, so as many as were given must open."""
    errors = [f"{device}: {error}" for device in devices if (error := _open_error(device))]
    if len(devices) >= count > len(devices) - len(errors):
        yield Finding(CHECK, ", ".join(errors), "check the driver and the device's rights")


def _open_error(device: Path) -> str:
    try:
        os.close(os.open(device, os.O_RDWR))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _asked(environ: Mapping[str, str], given: list[str] | None, count: int, timeout: float) -> list[Finding]:
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return []
    try:
        gpus = parse(_query(program, environ, timeout))
    except subprocess.TimeoutExpired:
        seen = f"nvidia-smi has not answered within {timeout:g} s"
        return [Finding(CHECK, seen, "the driver hangs: drain the node, and let it be rebooted")]
    except OSError as error:
        return [Finding(CHECK, f"nvidia-smi: {error.strerror or error}", "check the installation of the driver")]
    except Refused as refused:
        return [Finding(CHECK, f"nvidia-smi: {refused}", _REMEDY)]
    return [*judged(gpus, given, count), *_logged(gpus, given)]


class Refused(Exception):
    """The driver does not tell; why."""


def _query(program: str, environ: Mapping[str, str], timeout: float) -> str:
    for fields in (_FIELDS, _OLD_FIELDS):
        done = subprocess.run(
            [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
        said = (done.stdout + done.stderr).strip()
        if done.returncode == 0:
            return done.stdout
        if "not a valid field" not in said:
            break
    raise Refused(said.splitlines()[-1] if said else f"exit status {done.returncode}")


def bus_addresses(environ: Mapping[str, str], timeout: float) -> list[str]:
    """Addresses on PCI, as the kernel writes them, of the GPUs that this node was given, in their order.

    Raises Refused where the driver does not tell within ``timeout`` seconds.
    """
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        raise Refused("there is no nvidia-smi in PATH, which tells where the GPUs are")
    try:
        gpus = parse(_query(program, environ, timeout))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"nvidia-smi: {error}") from error
    given = given_gpus(environ)
    ours = gpus if given is None else [_named(gpus, entry) for entry in given]
    return [_address(gpu.bus) for gpu in ours]


def _named(gpus: Sequence[Gpu], entry: str) -> Gpu:
    """The GPU that an entry of CUDA_VISIBLE_DEVICES names."""
    for gpu in gpus:
        if gpu.index == entry or (not entry.isdigit() and gpu.uuid.startswith(entry)):
            return gpu
    raise Refused(f"CUDA_VISIBLE_DEVICES names {entry}, which nvidia-smi does not list as a GPU")


def _address(bus: str) -> str:
    """``0000:1b:00.0`` of nvidia-smi's ``00000000:1B:00.0``."""
    domain, _, rest = bus.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def parse(csv: str) -> list[Gpu]:
    """The GPUs in the output of nvidia-smi; lines of another form are left out."""
    rows = ([cell.strip() for cell in line.split(",")] for line in csv.splitlines())
    return [Gpu(*row) for row in rows if 4 <= len(row) <= 5]


def judged(gpus: Sequence[Gpu], given: Sequence[str] | None, count: int) -> Iterator[Finding]:
    """What is wrong with those GPUs of nvidia-smi's that were given; ``count`` is how many should be there."""
    if len(gpus) < count:
        seen = f"{len(gpus)} of {count} answer (CUDA_VISIBLE_DEVICES={','.join(given)})" if given else ""
        yield Finding(CHECK, seen or f"{len(gpus)} of {count} answer", _REMEDY)
    for gpu in _ours(gpus, given):
        if gpu.uncorrected.isdigit() and int(gpu.uncorrected):
            yield Finding(CHECK, f"GPU {gpu.index} has {gpu.uncorrected} uncorrected ECC errors", _REMEDY)
        elif gpu.remapping_failed.lower() == "yes":
            yield Finding(CHECK, f"GPU {gpu.index} could not remap broken rows of its memory", _REMEDY)
        elif "lost" in gpu.uncorrected.lower() or "unknown error" in gpu.uncorrected.lower():
            yield Finding(CHECK, f"GPU {gpu.index} does not answer: {gpu.uncorrected}", _REMEDY)


def _ours(gpus: Sequence[Gpu], given: Sequence[str] | None) -> list[Gpu]:
    """Those that were given; all of them where that can't be told, as for MIG instances."""
    if given is None:
        return list(gpus)
    ours = [gpu for gpu in gpus if any(gpu.index == entry or gpu.uuid.startswith(entry) for entry in given)]
    return ours if len(ours) == len(given) else list(gpus)


def _logged(gpus: Sequence[Gpu], given: Sequence[str] | None) -> Iterator[Finding]:
    ours = {_slot(gpu.bus): gpu.index for gpu in _ours(gpus, given)}
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    for slot, xid in dict.fromkeys(hardware_xids(_kernel_log(), now)):
        if slot in ours:
            yield Finding(CHECK, f"GPU {ours[slot]} has reported Xid {xid} within the last hour", _REMEDY)


def hardware_xids(records: Sequence[str], now: float) -> Iterator[tuple[str, int]]:
    """PCI slot and Xid of what the hardware reported lately; ``now`` in seconds since boot."""
    for record in records:
        found = _RECORD.match(record)
        if found and int(found["xid"]) in _HARDWARE and now - int(found["stamp"]) / 1e6 < _RECENT:
            yield _slot(found["bus"]), int(found["xid"])


def _slot(bus: str) -> str:
    """``BUS:DEVICE`` of an address on PCI; nvidia-smi and the kernel write domain and function differently."""
    return ":".join(bus.lower().split(".")[0].split(":")[-2:])


def _kernel_log() -> list[str]:
    """The kernel's messages, one record each; none where they may not be read."""
    records: list[str] = []
    with contextlib.suppress(OSError):
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        try:
            while True:
                try:
                    records.append(os.read(fd, 8192).decode(errors="replace"))
                except BrokenPipeError:  # overwritten meanwhile: the next read goes on behind the gap
                    continue
        finally:
            os.close(fd)
    return records
