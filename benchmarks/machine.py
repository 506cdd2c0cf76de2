"""A description of the machine that runs a benchmark, and of its software."""

import os
import platform
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Machine:
    """The machine and the software of a measurement."""

    cpu: str
    cores: int
    memory: int
    """Bytes."""

    system: str
    filesystem: str
    """Type of the filesystem of the runs' directories."""

    gpu: str
    python: str
    torch: str
    commit: str
    date: str
    load: float
    """Load average of the minute before the measurement, caused by other programs."""


def this_machine() -> Machine:
    return Machine(
        cpu=_first(r"model name\s*: (.*)", "/proc/cpuinfo") or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory=int(_first(r"MemTotal:\s*(\d+)", "/proc/meminfo") or 0) * 1024,
        system=f"Linux {platform.release()}",
        filesystem=_filesystem(Path(tempfile.gettempdir())),
        gpu=_first(r"Model:\s*(.*)", *map(str, Path("/proc/driver/nvidia/gpus").glob("*/information"))) or "none",
        python=platform.python_version(),
        torch=installed("torch") or "none",
        commit=_commit(),
        date=datetime.now(timezone.utc).date().isoformat(),
        load=round(os.getloadavg()[0], 2),
    )


def described(machine: Machine) -> str:
    """Return a description of the machine in one sentence."""
    return (
        f"{machine.date}, commit {machine.commit}: {machine.cores} cores of {machine.cpu}, "
        f"{machine.memory / 2**30:.0f} GiB, GPU: {machine.gpu}, {machine.system}, {machine.filesystem}, "
        f"Python {machine.python}, torch {machine.torch}; load average at the start {machine.load:g}."
    )


def document(machine: Machine) -> dict[str, object]:
    return asdict(machine)


def installed(package: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _first(pattern: str, *paths: str) -> str:
    for path in paths:
        try:
            if found := re.search(pattern, Path(path).read_text()):
                return found[1].strip()
        except OSError:
            continue
    return ""


def _filesystem(path: Path) -> str:
    """Return the type of the filesystem of ``path``: that of the longest mount point above it."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    holding = [(len(line[1]), line[2]) for line in lines if path.resolve().is_relative_to(line[1])]
    return max(holding, default=(0, "unknown"))[1]


@cache
def _commit() -> str:
    """Return the commit at the start. It is cached because results are written to the checkout while benchmarks run."""
    git = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
